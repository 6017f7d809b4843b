package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// recordedHost unpacks the files of a recorded machine: four nodes, eight CPUs.
func recordedHost(t *testing.T) linux.Root {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("..", "..", "..", "testdata", "hosts", "8cpu-4n-square.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := txtar.Write(archive, root); err != nil {
		t.Fatal(err)
	}
	return linux.Root(root)
}

func open(t *testing.T, o local.Options) *local.Host {
	t.Helper()
	h, err := local.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// The kernel's files are those of a recorded machine; the VMs are those of the
// hypervisor that libvirt simulates inside its library.
func TestOpen_ReadsTheKernelBelowRootAndTheVMsOfTheURI(t *testing.T) {
	h := open(t, local.Options{
		Root: recordedHost(
			t), URI: "test:///default", Claims: t.TempDir(), Housekeeping: topology.SetOf[topology.CPUID](3),
	})
	inv, err := h.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Topology.Nodes) != 4 || len(inv.Topology.CPUs) != 8 {
		t.Errorf("%d nodes and %d CPUs, want 4 and 8", len(inv.Topology.Nodes), len(inv.Topology.CPUs))
	}
	if !inv.Topology.Housekeeping.Contains(3) {
		t.Errorf("housekeeping CPUs are %s, want 3 among them", inv.Topology.Housekeeping)
	}
	d := libvirt.New("test:///default")
	defer d.Close()
	if _, err := d.Capabilities(t.Context()); errors.Is(err, libvirt.ErrNoLibrary) {
		t.Skipf("needs libvirt's library for its simulated hypervisor: %v", err)
	}
	if !slices.ContainsFunc(inv.Guests, func(g inventory.Guest) bool { return g.Name == "test" }) {
		t.Errorf("guests are %v, want libvirt's guest test among them; gaps: %v", inv.Guests, inv.Gaps)
	}
}

func TestOpen_RefusesAnotherHostsLibvirt(t *testing.T) {
	_, err := local.Open(local.Options{URI: "qemu+ssh://elsewhere/system"})
	var bad *local.URIError
	if !errors.As(err, &bad) || bad.URI != "qemu+ssh://elsewhere/system" || !errors.Is(err, libvirt.ErrOtherHost) {
		t.Errorf("error is %v, want a URIError that wraps ErrOtherHost", err)
	}
}

func TestOpen_HoldsClaimsAsThisProcess(t *testing.T) {
	h := open(t, local.Options{Claims: t.TempDir(), URI: "test:///default"})
	if h.Self.PID != os.Getpid() {
		t.Errorf("claims are held by process %d, want %d", h.Self.PID, os.Getpid())
	}
	if !h.Ledger.Alive(h.Self) {
		t.Error("the holder of new claims is reported as ended")
	}
	other := h.Self
	other.StartTicks++
	if h.Ledger.Alive(other) {
		t.Error("a process that reused our number passes for us")
	}
}

func TestDaemonOptions_AreOfThisHost(t *testing.T) {
	root, records := recordedHost(t), t.TempDir()
	path := filepath.Join(string(root), "proc", "sys", "kernel", "numa_balancing")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := open(t, local.Options{Root: root, URI: "test:///default", Records: records})
	w := h.Watch()
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	o := h.DaemonOptions(w)
	if o.Host != h.Host || o.Watcher != w {
		t.Error("the daemon watches or changes another host")
	}
	if o.Records != records || o.Journal != h.Journal {
		t.Errorf("alarms go to %s and the journal to %v, want %s", o.Records, o.Journal, records)
	}
	if v, err := o.Host.Settings.ReadSetting("/proc/sys/kernel/numa_balancing"); v != "1" || err != nil {
		t.Errorf("kernel.numa_balancing is %q, error %v; want 1 from the given root", v, err)
	}
	if cost := o.Self(); cost.Resident == 0 {
		t.Error("the daemon's own memory is not reported")
	}
}
