package xen

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// xenFleet is a real server, and hosts with real agents: simulated Xen hosts, and a fake one with KVM.
type xenFleet struct {
	t       *testing.T
	address string
	ca      *auth.CA
	client  *fleetapi.Client
	hosts   map[string]*simulated
}

func newXenFleet(t *testing.T) *xenFleet {
	t.Helper()
	records := memory.New(memory.Options{})
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := server.FirstAdmin(t.Context(), records, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &xenFleet{t: t, address: l.Addr().String(), ca: ca, hosts: map[string]*simulated{}}
	s := server.New(server.Options{Store: records, CA: ca, Log: slog.New(slog.DiscardHandler), Version: "test",
		Address: f.address, Names: []string{"127.0.0.1"}})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 2)
	go func() { s.Run(ctx, func() { close(ready) }); ended <- nil }()
	<-ready
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	f.client, err = fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.address, Token: token, CA: ca.CertificatePEM()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.Close)
	if _, err := f.client.PutProject(t.Context(), "p", fleetapi.ProjectEdit{}); err != nil {
		t.Fatal(err)
	}
	return f
}

// run lets a host join, and runs its agent until the test ends. restart ends the agent and runs it in another boot of
// the host.
func (f *xenFleet) run(name string, o agent.Options) (restart func(boot string)) {
	t := f.t
	t.Helper()
	made, err := f.client.CreateJoin(t.Context(), fleetapi.JoinCreate{})
	if err != nil {
		t.Fatal(err)
	}
	o.Folder = filepath.Join(t.TempDir(), "fleet")
	o.Member, err = agent.Join(t.Context(), o.Folder, agent.JoinRequest{Server: f.address, Token: made.Token,
		Fingerprint: made.Fingerprint, Host: name, ID: "id-" + name})
	if err != nil {
		t.Fatal(err)
	}
	host := o.Host
	o.Loads = func(ctx context.Context) (inventory.Host, error) { return host.Observe(ctx) }
	o.Program, o.Log = "test", slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", name)
	}
	o.Look, o.Grace = 50*time.Millisecond, 300*time.Millisecond
	o.LoadsEvery, o.HeartbeatEvery = 50*time.Millisecond, 100*time.Millisecond
	o.LeastWait, o.MostWait = 5*time.Millisecond, 20*time.Millisecond
	start := func() (end func()) {
		a := agent.New(o)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		return func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("the agent of %s ends with %v", name, err)
			}
		}
	}
	end := start()
	t.Cleanup(func() { end() })
	f.await("host "+name+" reports", func() bool {
		h, err := f.client.Host(t.Context(), name)
		return err == nil && h.Nodes > 0
	})
	return func(boot string) {
		end()
		o.Boot = boot
		end = start()
	}
}

// addXen adds a simulated Xen host.
func (f *xenFleet) addXen(name string) (*operate.Host, *simulated) {
	f.t.Helper()
	h, s := joined(f.t)
	h.Sources.HostName = func() (string, error) { return name, nil }
	h.Sources.HostID = func() (string, error) { return "id-" + name, nil }
	h.Sources.Complete = func(inv *inventory.Host) {
		inv.MachineTypes, inv.NoNewVMs, inv.NearMemoryOnly = []string{inventory.MachineXen}, true, true
	}
	f.hosts[name] = s
	return h, s
}

// addKVM adds a host with KVM, and much more room.
func (f *xenFleet) addKVM(name string) operatetest.World {
	f.t.Helper()
	w := operatetest.New(f.t, "nodes:4 cores:16 memory:64G", f.t.TempDir())
	w.Joined.Clock, w.Joined.Sources.Now = time.Now, time.Now
	f.run(name, agent.Options{Host: &w.Joined.Host, Machines: renderers(func(*fleet.VM) operate.Renderer {
		return operatetest.Render
	})})
	return w
}

// renderers makes definitions, and nothing else that a VM needs.
type renderers func(*fleet.VM) operate.Renderer

func (r renderers) Prepare(_ context.Context, v *fleet.VM) (operate.Renderer, func() error, error) {
	return r(v), nil, nil
}

// xlMachines makes xl configurations as package local does, with a UUID of the VM's creation.
func xlMachines() renderers {
	return func(v *fleet.VM) operate.Renderer {
		of := Machine{UUID: uuidOf(v), MAC: "52:54:00:00:00:01", Kernel: v.Machine.Kernel, Network: v.Machine.Network}
		for _, d := range v.Machine.Disks {
			of.Disks = append(of.Disks, Disk{Path: d.Path, Format: d.Format, ReadOnly: d.ReadOnly})
		}
		return func(i guest.Intent) (operate.Rendered, error) {
			d, err := of.Definition(i)
			return operate.Rendered{Definition: d, Transient: true}, err
		}
	}
}

func uuidOf(v *fleet.VM) string {
	return "aaaaaaaa-0000-4000-8000-" + v.Created.UTC().Format("060102150405")
}

// await waits until something holds.
func (f *xenFleet) await(what string, holds func() bool) {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	vms, err := f.client.VMs(f.t.Context(), fleetapi.Filter{})
	for i := range vms {
		f.t.Logf("%s is %s on %s: %q %q %+v %+v", vms[i].Name, vms[i].State, vms[i].Host, vms[i].Pending, vms[i].Stays,
			vms[i].Status, vms[i].Migration)
	}
	f.t.Fatalf("not in time: %s (%v)", what, err)
}

// until waits until a VM is in a state.
func (f *xenFleet) until(name string, want fleetapi.VMState) (vm fleetapi.VM) {
	f.t.Helper()
	f.await(name+" is "+string(want), func() bool {
		var err error
		vm, err = f.client.VM(f.t.Context(), name)
		return err == nil && vm.State == want
	})
	return vm
}

// create creates a VM of type xen with a disk and a network card.
func (f *xenFleet) create(name string, vcpus int) fleetapi.VM {
	f.t.Helper()
	_, err := f.client.CreateVM(f.t.Context(), fleetapi.VMCreate{Project: "p",
		Spec: guest.Spec{Name: name, VCPUs: vcpus, Memory: topology.GiB / 2},
		Machine: fleet.Machine{Type: inventory.MachineXen, Kernel: "/images/vmlinuz", Network: "xenbr0",
			Disks: []fleet.Disk{{Path: "/images/" + name + ".raw"}}}}, fleetapi.Change{})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.until(name, fleetapi.VMRunning)
}

// domain returns the domain of a name on a simulated host; nil: there is none.
func (s *simulated) domain(name string) *simDomain {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.domains {
		if d.name == name {
			found := *d
			return &found
		}
	}
	return nil
}

// stored is the number of values in xenstore.
func (s *simulated) stored() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.store)
}

// creations counts the calls of xl create.
func (s *simulated) creations() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if strings.HasPrefix(c, "xl create") {
			n++
		}
	}
	return n
}

// A VM of a fleet is created on a Xen host, stopped, started with another size, and deleted. xl stores nothing of it:
// each start creates it again, with the same UUID, and a VM that ends by itself is not started by the daemon.
func TestFleet_VMOnXen(t *testing.T) {
	f := newXenFleet(t)
	h, s := f.addXen("x1")
	f.run("x1", agent.Options{Host: h, Machines: xlMachines()})
	vm := f.create("web", 2)
	d := s.domain("web")
	if d == nil || len(d.hard) != 2 || d.memory != 512 || !vm.Placement.Nodes.Contains(d.node) {
		t.Fatalf("the domain is %+v, the fleet's nodes are %s", d, vm.Placement.Nodes)
	}
	for _, deaf := range []bool{false, true} { // a guest that ignores the request is ended
		s.mu.Lock()
		s.deaf = deaf
		s.mu.Unlock()
		if _, err := f.client.StopVM(t.Context(), "web", fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		f.until("web", fleetapi.VMStopped)
		if left, values := s.domain("web"), s.stored(); left != nil || values > 0 {
			t.Fatalf("of the stopped VM are left: %+v, %d values in xenstore", left, values)
		}
		if deaf {
			if _, err := f.client.ResizeVM(t.Context(), "web", fleetapi.VMResize{VCPUs: 3}, fleetapi.Change{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.client.StartVM(t.Context(), "web", fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		f.until("web", fleetapi.VMRunning)
		if now := s.domain("web"); now == nil || now.uuid != d.uuid || deaf && len(now.hard) != 3 {
			t.Fatalf("the domain is now %+v, want the UUID %s, and 3 vCPUs: %v", now, d.uuid, deaf)
		}
	}
	s.mu.Lock()
	for id, d := range s.domains {
		if d.name == "web" {
			delete(s.domains, id)
		}
	}
	s.mu.Unlock()
	vm = f.until("web", fleetapi.VMFailed)
	if n := s.creations(); n != 3 || !strings.Contains(vm.Status.Message, "it ended") {
		t.Errorf("created %d times, and its status says %q", n, vm.Status.Message)
	}
	if _, err := f.client.DeleteVM(t.Context(), "web", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	f.await("it is deleted", func() bool {
		vms, err := f.client.VMs(t.Context(), fleetapi.Filter{})
		return err == nil && len(vms) == 0
	})
}

// After a boot of its host, a VM is created again with its UUID. xl stores nothing of it.
func TestFleet_CreatesVMsAgainAfterABoot(t *testing.T) {
	f := newXenFleet(t)
	h, s := f.addXen("x1")
	restart := f.run("x1", agent.Options{Host: h, Machines: xlMachines(), Boot: "b1"})
	f.create("web", 2)
	uuid := s.domain("web").uuid
	for _, boot := range []string{"b1", "b2"} { // a restart of the daemon, and a boot of the host
		s.mu.Lock()
		if boot == "b2" {
			clear(s.domains)
			clear(s.store)
		}
		s.mu.Unlock()
		restart(boot)
		f.await("it runs in "+boot, func() bool { d := s.domain("web"); return d != nil && d.uuid == uuid })
		f.until("web", fleetapi.VMRunning)
	}
	if n := s.creations(); n != 2 {
		t.Errorf("created %d times, want 2", n)
	}
}

// A VM whose stop was interrupted after its intent was removed is the fleet's still, and can be deleted.
func TestFleet_DeletesAVMThatWasHalfStopped(t *testing.T) {
	f := newXenFleet(t)
	h, s := f.addXen("x1")
	f.run("x1", agent.Options{Host: h, Machines: xlMachines()})
	f.create("web", 1)
	if err := h.Control.Forget(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.DeleteVM(t.Context(), "web", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	f.await("it is deleted", func() bool {
		vms, err := f.client.VMs(t.Context(), fleetapi.Filter{})
		return err == nil && len(vms) == 0 && s.domain("web") == nil
	})
}

// A fleet of two Xen hosts and a KVM host with much more room: a VM of type xen is placed on a Xen host, migrates to
// the other one, and back when that is drained. No VM of type xen gets to the KVM host, and no other one to a Xen host.
func TestFleet_MigratesBetweenXenHosts(t *testing.T) {
	f := newXenFleet(t)
	for _, name := range []string{"x1", "x2"} {
		h, _ := f.addXen(name)
		f.run(name, agent.Options{Host: h, Machines: xlMachines(), Migrations: &migrate.Host{Host: h,
			Port: h.Control.(*Driver), Name: name, URI: MigrationURI(name), Define: xlMachines().Define}})
	}
	f.hosts["x1"].peer, f.hosts["x2"].peer = f.hosts["x2"], f.hosts["x1"]
	kvm := f.addKVM("k")
	source := f.create("web", 2)
	other := map[string]string{"x1": "x2", "x2": "x1"}[source.Host]
	if other == "" {
		t.Fatalf("it is on host %s", source.Host)
	}
	uuid := f.hosts[source.Host].domain("web").uuid
	if _, err := f.client.MigrateVM(t.Context(), "web", fleetapi.VMMigrate{To: "k"}, fleetapi.Change{}); err == nil {
		t.Error("it may migrate to the KVM host")
	}
	if _, err := f.client.MigrateVM(t.Context(), "web", fleetapi.VMMigrate{}, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	on := func(host, former string) func() bool {
		return func() bool {
			vm, err := f.client.VM(t.Context(), "web")
			d := f.hosts[host].domain("web")
			return err == nil && vm.Host == host && vm.Migration == nil && vm.State == fleetapi.VMRunning && d != nil &&
				d.uuid == uuid && vm.Placement.Nodes.Contains(d.node) && f.hosts[former].domain("web") == nil
		}
	}
	f.await("it runs on the other Xen host", on(other, source.Host))
	if _, err := f.client.Drain(t.Context(), other, fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	f.await("the drain moves it back", on(source.Host, other))
	plain, err := f.client.CreateVM(t.Context(), fleetapi.VMCreate{Project: "p",
		Spec: guest.Spec{Name: "plain", VCPUs: 2, Memory: topology.GiB}}, fleetapi.Change{})
	if err != nil || plain.Host != "k" {
		t.Errorf("the VM of type kvm is on host %q: %v", plain.Host, err)
	}
	f.until("plain", fleetapi.VMRunning)
	if _, there := kvm.Guest("web"); there {
		t.Error("the VM of type xen is on the KVM host")
	}
	if n := f.hosts["x1"].creations() + f.hosts["x2"].creations(); n != 1 {
		t.Errorf("it was created %d times", n)
	}
}
