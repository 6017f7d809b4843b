package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/server"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// aFleet is the real server on a store in memory, which can be restarted and cut off, and a host
// in memory with the real agent.
type aFleet struct {
	t       *testing.T
	store   store.Store
	ca      *auth.CA
	address string
	client  *fleetapi.Client
	stop    func()
	conns   *cutter
	host    *member
}

// cutter is a listener whose connections can be cut.
type cutter struct {
	net.Listener
	made chan net.Conn
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		select {
		case c.made <- conn:
		default:
		}
	}
	return conn, err
}

// cut closes all connections that were made.
func (c *cutter) cut() {
	for {
		select {
		case conn := <-c.made:
			_ = conn.Close()
		default:
			return
		}
	}
}

func newFleet(t *testing.T) *aFleet {
	t.Helper()
	f := &aFleet{t: t, store: memory.New(memory.Options{}), address: "127.0.0.1:0"}
	var err error
	if f.ca, err = auth.NewCA("fleet", time.Now()); err != nil {
		t.Fatal(err)
	}
	token, err := server.FirstAdmin(t.Context(), f.store, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.start()
	t.Cleanup(func() { f.stop() })
	f.client, err = fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.address, Token: token,
		CA: f.ca.CertificatePEM()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.Close)
	if _, err := f.client.PutProject(t.Context(), "p", fleetapi.ProjectEdit{}); err != nil {
		t.Fatal(err)
	}
	made, err := f.client.CreateJoin(t.Context(), fleetapi.JoinCreate{})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{World: operatetest.New(t, square, t.TempDir()), t: t, folder: filepath.Join(t.TempDir(), "fleet")}
	m.Joined.Clock, m.Joined.Sources.Now = time.Now, time.Now
	if _, err := agent.Join(t.Context(), m.folder, agent.JoinRequest{Server: f.address, Token: made.Token,
		Fingerprint: made.Fingerprint, Host: "fake", ID: "machine"}); err != nil {
		t.Fatal(err)
	}
	m.start()
	t.Cleanup(m.end)
	f.host = m
	return f
}

// start starts a server on the fleet's store, at the same address as the one before.
func (f *aFleet) start() {
	f.t.Helper()
	l, err := net.Listen("tcp", f.address)
	for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen("tcp", f.address)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.address = l.Addr().String()
	f.conns = &cutter{Listener: l, made: make(chan net.Conn, 1000)}
	s := server.New(server.Options{Store: f.store, CA: f.ca, Log: slog.New(slog.DiscardHandler), Version: "test",
		Address: f.address, Names: []string{"127.0.0.1"}})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 2)
	go func() { s.Run(ctx, func() { close(ready) }); ended <- nil }()
	<-ready
	conns := f.conns
	go func() { ended <- s.Serve(ctx, conns) }()
	f.stop = func() {
		cancel()
		for open := 2; open > 0; {
			select {
			case <-ended:
				open--
			case <-time.After(10 * time.Millisecond):
				conns.cut() // streams do not end by themselves
			}
		}
	}
}

// until waits until a VM is in a state.
func (f *aFleet) until(name string, want fleetapi.VMState) {
	f.t.Helper()
	var vm fleetapi.VM
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if vm, err = f.client.VM(f.t.Context(), name); err == nil && vm.State == want {
			return
		}
	}
	f.t.Fatalf("VM %s is %s, not %s: %v, pending %q, status %+v", name, vm.State, want, err, vm.Pending, vm.Status)
}

// change repeats a request until the server has taken it.
func (f *aFleet) change(what string, do func(ctx context.Context) error) {
	f.t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = do(f.t.Context()); err == nil {
			return
		}
	}
	f.t.Fatalf("%s: %v", what, err)
}

func (f *aFleet) create(name string) {
	f.t.Helper()
	f.change("creating "+name, func(ctx context.Context) error {
		_, err := f.client.CreateVM(ctx, fleetapi.VMCreate{Project: "p",
			Spec: guest.Spec{Name: name, VCPUs: 2, Memory: topology.GiB / 2}}, fleetapi.Change{Key: "create-" + name})
		return err
	})
}

func (f *aFleet) run(name string, state fleet.RunState) {
	f.t.Helper()
	f.change(string(state)+" "+name, func(ctx context.Context) error {
		var err error
		if state == fleet.Running {
			_, err = f.client.StartVM(ctx, name, fleetapi.Change{})
		} else {
			_, err = f.client.StopVM(ctx, name, fleetapi.Change{})
		}
		return err
	})
}

// From the API to a bound VM and back, with the real server.
func TestFleet_CreatesStopsAndDeletesAVM(t *testing.T) {
	f := newFleet(t)
	f.create("web")
	f.until("web", fleetapi.VMRunning)
	f.host.CheckInPlace(t, "web")
	vm, err := f.client.VM(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if g := f.host.MustGuest(t, "web"); !g.Placement.Nodes.Equal(vm.Placement.Nodes) {
		t.Errorf("it runs on nodes %s, the fleet claims %s", g.Placement.Nodes, vm.Placement.Nodes)
	}
	f.run("web", fleet.Stopped)
	f.until("web", fleetapi.VMStopped)
	f.run("web", fleet.Running)
	f.until("web", fleetapi.VMRunning)
	f.host.CheckInPlace(t, "web")
	f.change("deleting web", func(ctx context.Context) error {
		_, err := f.client.DeleteVM(ctx, "web", fleetapi.Change{})
		return err
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if vms, err := f.client.VMs(t.Context(), fleetapi.Filter{}); err == nil && len(vms) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the VM is still in the fleet")
		}
	}
	if _, exists := f.host.Guest("web"); exists {
		t.Error("the VM is still on the host")
	}
	f.host.CheckSettled(t)
}

// A server that loses a status gets it again, although nothing changes and the connection stays.
func TestFleet_ALostStatusComesAgain(t *testing.T) {
	f := newFleet(t)
	f.host.end()
	f.host.repeat = 100 * time.Millisecond
	f.host.start()
	f.create("web")
	f.until("web", fleetapi.VMRunning)
	key := store.Statuses + "web/fake"
	if _, err := f.store.Commit(t.Context(), store.Txn{Delete: []string{key}}); err != nil {
		t.Fatal(err)
	}
	f.change("finding the status", func(ctx context.Context) error {
		_, err := f.store.Get(ctx, key)
		return err
	})
	f.until("web", fleetapi.VMRunning)
}

// Restarts of the server and of the daemon, and connections that are cut at random: each VM
// is created once, and all ends as the users want it.
func TestFleet_SurvivesRestarts(t *testing.T) {
	f := newFleet(t)
	random := rand.New(rand.NewPCG(1, 2))
	const vms = 3
	for i := range vms {
		f.create(fmt.Sprintf("vm%d", i))
	}
	want, ends := map[string]fleet.RunState{}, 0
	for range 10 {
		name := fmt.Sprintf("vm%d", random.IntN(vms))
		want[name] = []fleet.RunState{fleet.Running, fleet.Stopped}[random.IntN(2)]
		f.run(name, want[name])
		switch random.IntN(4) {
		case 0:
			f.stop()
			f.start()
		case 1:
			ends++
			f.host.end()
			f.host.start()
		case 2:
			f.conns.cut()
		}
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	}
	for i := range vms {
		name := fmt.Sprintf("vm%d", i)
		if want[name] == fleet.Stopped {
			f.until(name, fleetapi.VMStopped)
		} else {
			f.until(name, fleetapi.VMRunning)
			f.host.CheckInPlace(t, name)
		}
		// A daemon need not create a VM of which it first hears when a user has stopped it. A creation
		// that the end of the daemon interrupts begins again.
		switch n := f.host.creates(name); {
		case n == 0 && want[name] != fleet.Stopped:
			t.Errorf("%s runs and was not created", name)
		case n > 1+ends:
			t.Errorf("%s was created %d times, and the daemon ended %d times", name, n, ends)
		}
	}
}

// A host learns of the other servers, and connects to one of them when its own stops.
func TestFleet_AHostChangesServers(t *testing.T) {
	f := newFleet(t)
	other := &aFleet{t: t, store: f.store, ca: f.ca, address: "127.0.0.1:0"}
	other.start()
	t.Cleanup(func() { other.stop() })
	var token string
	f.change("making a token", func(ctx context.Context) error {
		made, err := f.client.CreateToken(ctx, "admin", fleetapi.TokenCreate{})
		token = made.Secret
		return err
	})
	known := 0
	for end := time.Now().Add(30 * time.Second); known < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m, err := agent.LoadMember(f.host.folder); err == nil {
			known = len(m.Others)
		}
	}
	f.stop()
	f.stop = func() {}
	var err error
	if f.client, err = fleetapi.NewClient(fleetapi.Config{URL: "https://" + other.address, Token: token,
		CA: f.ca.CertificatePEM()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.Close)
	f.create("web")
	f.until("web", fleetapi.VMRunning)
}
