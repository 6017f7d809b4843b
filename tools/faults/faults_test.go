package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/tools/process"
)

// TestMain also is the program of the simulated hosts and of members of etcd.
func TestMain(m *testing.M) {
	if is, err := asProcess(os.Args); is {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// build makes the program of the server.
func build(t *testing.T) string {
	t.Helper()
	server := filepath.Join(t.TempDir(), "numavisor-server")
	run := exec.CommandContext(t.Context(), "go", "build", "-o", server, "../../cmd/numavisor-server")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return server
}

// The short form of 'make test-faults': three servers and three hosts on loopback, with their own etcd and with an
// external one of three members.
func TestFaults_LoseAndClaimTwiceNothing(t *testing.T) {
	server := build(t)
	for i, etcd := range []string{etcdOwn, etcdExternal} {
		t.Run(etcd, func(t *testing.T) {
			o := options{server: server, seed: 2, time: 3 * time.Second, etcd: etcd, id: (2*os.Getpid() + i) % 200}
			report, err := o.run(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", report, err)
			}
			t.Log(report)
		})
	}
}

// The schedule of a seed has each kind of fault, and two at once never concern the same program.
func TestKinds_AllAreDrawn(t *testing.T) {
	f := &aFleet{net: network{apart: true}, servers: []*process.Program{{Name: "s0"}, {Name: "s1"}, {Name: "s2"}},
		members: []*process.Program{{Name: "e0"}, {Name: "e1"}, {Name: "e2"}}, hosts: []*process.Program{{Name: "h0"}}}
	random, missing := rand.New(rand.NewPCG(1, 0)), map[string]bool{"kill s": true, "kill e": true, "kill h": true,
		"stop": true, "power off": true, "no quorum": true, "clog": true, "libvirtd down": true, "libvirtd flaky": true,
		"cut": true, "part": true, "slow": true, "mute": true, "deafen": true, "fill": true,
		"clock": process.CanShift, "start": process.CanShift}
	for range 2000 {
		next := f.draw(t.Context(), random)
		for name := range missing {
			if strings.HasPrefix(next.name, name) {
				delete(missing, name)
			}
		}
	}
	for name, must := range missing {
		if must {
			t.Errorf("no fault %q was drawn", name)
		}
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{{"no quorum: kill e0 e1", "stop e1", true}, {"clock s1 3h0m0s ahead", "cut s1", true},
		{"clock s1 3h0m0s ahead", "clock s2 30s behind", false}, {"libvirtd down h0", "kill h0", true}} {
		if overlap(c.a, c.b) != c.same {
			t.Errorf("%q and %q: the same program: want %v", c.a, c.b, c.same)
		}
	}
}

// A libvirtd that ends during calls loses answers, of calls that it has carried out too, and goes on after it.
func TestConnection_LosesAnswers(t *testing.T) {
	c := connection{filepath.Join(t.TempDir(), "libvirtd")}
	count := func() (made, answered int) {
		for range 300 {
			if c.ask(func() error { made++; return nil }) == nil {
				answered++
			}
		}
		return made, answered
	}
	for state, want := range map[libvirtd]func(made, answered int) bool{
		libvirtdRuns:  func(made, answered int) bool { return made == 300 && answered == 300 },
		libvirtdDown:  func(made, answered int) bool { return made == 0 && answered == 0 },
		libvirtdFlaky: func(made, answered int) bool { return made < 300 && answered < made && answered > 0 },
	} {
		if err := os.WriteFile(c.file, []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
		if made, answered := count(); !want(made, answered) {
			t.Errorf("%q: %d calls made, %d answered", state, made, answered)
		}
	}
}

// The checker finds what it looks for.
func TestCheckClaims(t *testing.T) {
	vm := func(name string, cpus string, memory topology.Bytes) fleetapi.VM {
		return fleetapi.VM{VM: fleet.VM{Name: name, Host: "h0",
			Placement: guest.Placement{CPUMode: guest.CPUExclusive, Reservations: []guest.Reservation{{
				Node: 0, Memory: memory, Exclusive: topology.MustParseSet[topology.CPUID](cpus)}}}}}
	}
	sharing := func(name string, vcpus int) fleetapi.VM {
		return fleetapi.VM{VM: fleet.VM{Name: name, Host: "h0", Placement: guest.Placement{CPUMode: guest.CPURange,
			Reservations: []guest.Reservation{{Node: 0, Memory: topology.MiB, VCPUs: vcpus}}}}}
	}
	for _, c := range []struct {
		what string
		vms  []fleetapi.VM
		want string
	}{
		{"two VMs that fit", []fleetapi.VM{vm("a", "0-1", topology.GiB), vm("b", "2", topology.GiB)}, ""},
		{"a CPU twice", []fleetapi.VM{vm("a", "0-1", topology.GiB), vm("b", "1-2", topology.GiB)}, "CPU 1 of host h0"},
		{"memory twice", []fleetapi.VM{vm("a", "0", topology.GiB), vm("b", "1", 4*topology.GiB)}, "claimed of"},
		{"VMs that share CPUs", []fleetapi.VM{sharing("a", 4), sharing("b", 4)}, ""},
		{"too many vCPUs", []fleetapi.VM{sharing("a", 4), sharing("b", 4), sharing("c", 1)}, "9 vCPUs"},
		{"a VM and the CPUs of others", []fleetapi.VM{sharing("a", 2), vm("b", "0-1", topology.GiB)}, ""},
		{"a VM with too few CPUs", []fleetapi.VM{vm("b", "0-2", topology.GiB), sharing("a", 2)}, "2 of one VM"},
	} {
		err := checkClaims(c.vms)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// A VM that starts on a second host is a violation, whatever the records say.
func TestHypervisor_SeesASecondStart(t *testing.T) {
	shared := t.TempDir()
	if err := os.Mkdir(filepath.Join(shared, "running"), 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := &hypervisor{shared: shared, name: "a"}, &hypervisor{shared: shared, name: "b"}
	f := &aFleet{shared: shared}
	if err := a.mark("web"); err != nil || a.mark("web") != nil || f.violations() != nil {
		t.Fatal(err, f.violations())
	}
	if err := b.mark("web"); err == nil || f.violations() == nil {
		t.Error("the second start was not seen")
	}
}

// The kernel's pools of huge pages survive a daemon, like the VMs that use them.
func TestHypervisor_RestartsWithVMsInAGrownPool(t *testing.T) {
	shared := t.TempDir()
	if err := os.Mkdir(filepath.Join(shared, "running"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := &hypervisor{Host: fake.MustNew(machine), folder: t.TempDir(), shared: shared, name: "h0"}
	if err := h.load(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.GrowPool(1, 2*topology.MiB, 512); err != nil {
		t.Fatal(err)
	}
	nodes := topology.SetOf[topology.NodeID](1)
	p := guest.Placement{Guest: "web", Nodes: nodes, PageSize: 2 * topology.MiB, MemoryMode: guest.MemoryStrict,
		Cells: []guest.Cell{{Memory: topology.GiB, VCPUs: topology.SetOf[guest.VCPUID](0), Nodes: nodes}}}
	definition, err := fake.Render(guest.Intent{Spec: guest.Spec{Name: "web", VCPUs: 1, Memory: topology.GiB,
		PageSize: 2 * topology.MiB}, Placement: p})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context(), definition, false); err != nil {
		t.Fatal(err)
	}
	again := &hypervisor{Host: fake.MustNew(machine), folder: h.folder, shared: shared, name: "h0"}
	if err := again.load(); err != nil {
		t.Error(err)
	}
}
