package xen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// captured reads an output of Xen 4.17 in the lab's shape square4: three guests, of which g2 is
// pinned by cpus alone.
func captured(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "square4", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// recorded answers with captured outputs.
func recorded(t *testing.T, outputs map[string]string) *Driver {
	t.Helper()
	return New(func(_ context.Context, program string, args ...string) ([]byte, error) {
		line := strings.Join(append([]string{program}, args...), " ")
		if file, ok := outputs[line]; ok {
			return captured(t, file), nil
		}
		return nil, &FailedError{Command: line, Status: 1, Said: "not captured"}
	})
}

var ofSquare4 = map[string]string{"xl info -n": "info-n", "xl list -c -n": "list-c-n", "xl list -l": "list-l",
	"xl vcpu-list": "vcpu-list", "xl cpupool-list": "pools0", "xl cpupool-list -c": "pools-c0", "xl debug-keys u": "none",
	"xl dmesg": "dmesg"}

func TestGuests_OfACapturedHost(t *testing.T) {
	d := recorded(t, ofSquare4)
	guests, err := d.Guests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(guests) != 3 {
		t.Fatalf("%d guests, want g1, g2, g3 without the control domain", len(guests))
	}
	g := guests[1]
	const size = 49168 * 4 * topology.KiB
	switch {
	case g.Name != "g2" || g.UUID != "48bb7e8e-74eb-41ed-9547-1b1b455b78ab" || g.State != "running":
		t.Errorf("guest is %s %s %s", g.Name, g.UUID, g.State)
	case g.Config.VCPUs != 2 || g.Config.Memory != 192*topology.MiB || g.Pool != "Pool-0" || g.PID != 0:
		t.Errorf("guest has %d vCPUs, %v, pool %q, process %d", g.Config.VCPUs, g.Config.Memory, g.Pool, g.PID)
	case g.Config.Pins[1].String() != "4-5":
		t.Errorf("vCPU 1 is pinned to %q, want 4-5", g.Config.Pins[1])
	case len(g.Seen.MemoryByNode) != 1 || g.Seen.MemoryByNode[1] != size:
		t.Errorf("memory by node is %v, want all on node 1, away from its CPUs", g.Seen.MemoryByNode)
	case g.Seen.Threads[1].LastCPU != 5 || g.Seen.Threads[1].RunTime != 6200*time.Millisecond:
		t.Errorf("vCPU 1 is %+v", g.Seen.Threads[1])
	case !g.Seen.Threads[0].Preferred.IsEmpty():
		t.Errorf("soft affinity outside the hard one counts: %s", g.Seen.Threads[0].Preferred)
	}
	free := guests[0]
	if free.Config.Pins != nil || free.Seen.Threads[0].Affinity.String() != "0-7" ||
		free.Seen.Threads[0].Preferred.String() != "4-5" {
		t.Errorf("g1 has pins %v, may run on %s and prefers %s; want none, 0-7, 4-5", free.Config.Pins,
			free.Seen.Threads[0].Affinity, free.Seen.Threads[0].Preferred)
	}
}

// The debug key is pressed again only when a domain comes, goes or changes its size, or after a minute.
func TestLocate_AsksOnlyWhenNeeded(t *testing.T) {
	s := newSimulated(synthetic(t))
	d := New(s.run)
	now := time.Unix(0, 0)
	d.clock = func() time.Time { return now }
	pressed := func() (n int) {
		for _, c := range s.calls {
			if c == "xl debug-keys u" {
				n++
			}
		}
		return n
	}
	look := func(want int, when string) {
		t.Helper()
		if _, err := d.Guests(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := pressed(); got != want {
			t.Errorf("%s: the key was pressed %d times, want %d", when, got, want)
		}
	}
	look(1, "first")
	look(1, "nothing changed")
	s.domains[1] = &simDomain{name: "new", memory: 64, hard: make([]topology.CPUSet, 1), soft: make([]topology.CPUSet, 1),
		pool: "Pool-0"}
	look(2, "a domain came")
	s.domains[1].memory = 32
	look(3, "a domain became smaller")
	now = now.Add(dumpLife + time.Second)
	look(4, "a minute later")
}

// A part that cannot be read is a gap, and hides no guests.
func TestGuests_GapsHideNothing(t *testing.T) {
	for command, kind := range map[string]inventory.GapKind{"xl dmesg": inventory.MemoryUnread,
		"xl debug-keys": inventory.MemoryUnread, "xenstore-ls": inventory.IntentUnused} {
		s := newSimulated(synthetic(t))
		s.domains[1] = &simDomain{name: "vm", memory: 64, hard: make([]topology.CPUSet, 1),
			soft: make([]topology.CPUSet, 1), pool: "Pool-0"}
		s.failing[command] = ErrHangs
		guests, err := New(s.run).Guests(t.Context())
		var partly *IncompleteError
		if !errors.As(err, &partly) || len(guests) != 1 || len(partly.Gaps()) != 1 || partly.Gaps()[0].Kind != kind {
			t.Errorf("%s fails: %d guests, error %v; want one guest and a gap %s", command, len(guests), err, kind)
		}
	}
	for _, command := range []string{"xl list", "xl vcpu-list", "xl cpupool-list"} {
		s := newSimulated(synthetic(t))
		s.failing[command] = ErrHangs
		_, err := New(s.run).Guests(t.Context())
		var partly *IncompleteError
		if !errors.Is(err, ErrHangs) || errors.As(err, &partly) {
			t.Errorf("%s fails: error %v, want one that hides the guests", command, err)
		}
	}
}

// A program that does not answer ends with its deadline; one that is missing is named.
func TestCall_HangingAndAbsent(t *testing.T) {
	d := New(nil)
	d.limit = 50 * time.Millisecond
	began := time.Now()
	if _, err := d.call(t.Context(), d.limit, "sleep", "60"); !errors.Is(err, ErrHangs) {
		t.Errorf("error is %v, want ErrHangs", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("returned after %v", took)
	}
	hangs := New(func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	hangs.limit = time.Millisecond
	if _, err := hangs.Topology(); !errors.Is(err, ErrHangs) {
		t.Errorf("reading the topology: error is %v, want ErrHangs", err)
	}
	slow := New(func(ctx context.Context, program string, _ ...string) ([]byte, error) {
		<-ctx.Done() // the machine is busy: the deadline passes before the answer is looked at
		return nil, fmt.Errorf("%s %w", program, ErrNoTool)
	})
	slow.limit = time.Millisecond
	if _, err := slow.xl(t.Context(), "list"); !errors.Is(err, ErrNoTool) {
		t.Errorf("a missing program, noticed late: error is %v, want ErrNoTool", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := d.xl(t.Context(), "list"); !errors.Is(err, ErrNoTool) {
		t.Errorf("error is %v, want ErrNoTool", err)
	}
}

func TestParsePools(t *testing.T) {
	pools, err := parsePools(captured(t, "pools1"), captured(t, "pools-c1"))
	if err != nil {
		t.Fatal(err)
	}
	if len(pools) != 4 || pools[2].Name != "Pool-node2" || pools[2].CPUs.String() != "4-5" ||
		pools[2].Scheduler != "credit2" {
		t.Errorf("pools are %+v", pools)
	}
}

// The last dump counts; a domain whose lines do not add up is cut, not wrong.
func TestParseDump(t *testing.T) {
	text := captured(t, "dmesg2")
	d, err := parseDump(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.nodes) != 4 || d.nodes[7] == nil || d.nodes[1] != nil || len(d.cut) != 0 || d.stamp == "" {
		t.Errorf("domains are %v, cut %v; want those of the last dump", d.nodes, d.cut)
	}
	last := bytes.LastIndex(text, []byte("Memory location"))
	d, err = parseDump(text[last:])
	if err != nil || len(d.nodes) != 4 || d.stamp != "" {
		t.Errorf("without its beginning: %v, stamp %q, error %v", d.nodes, d.stamp, err)
	}
	d, err = parseDump(text[:len(text)-40])
	if err != nil || !d.cut[7] || d.nodes[7] != nil {
		t.Errorf("without its end: domains %v, cut %v, error %v", d.nodes, d.cut, err)
	}
	if _, err := parseDump([]byte("(XEN) nothing\n")); err == nil {
		t.Error("a console without a dump is accepted")
	}
}

func TestParseDomains_Refuses(t *testing.T) {
	for _, text := range []string{"", "x", "Name ID Mem VCPUs State Time(s) Cpupool NODE Affinity\ngarbage\n"} {
		if _, err := parseDomains([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if _, err := parseDomains([]byte("Name  ID Mem VCPUs State Time(s) Cpupool NODE Affinity\n" +
		"a b 4711 r----- 7    64     1     ---s--       0.0APoolOfManyLetters 0-1,3\n")); err != nil {
		t.Error(err)
	}
}

func synthetic(t testing.TB) topology.Topology {
	t.Helper()
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// Start leaves nothing of a guest that is not created, and ends one whose intent is not recorded.
func TestStart_LeavesNothing(t *testing.T) {
	for command, failure := range map[string]error{"xenstore-write": ErrHangs,
		"xl create": &FailedError{Command: "xl create", Status: 3, Said: "no memory"}} {
		s := newSimulated(synthetic(t))
		s.failing[command] = failure
		text := []byte("name = \"vm\"\nmemory = 64\n")
		err := New(s.run).Start(t.Context(), guest.Definition{Name: "vm", Text: text, Intent: &guest.Intent{}}, true)
		if err == nil || len(s.domains) != 1 {
			t.Errorf("%s fails: error %v, %d domains; want an error and the control domain only", command, err,
				len(s.domains))
		}
	}
}

func FuzzParseDomains(f *testing.F) {
	f.Add(captured(f, "list-c-n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		domains, err := parseDomains(data)
		if err != nil {
			return
		}
		for i := range domains {
			if s := domains[i].runState(); s == "" || domains[i].Name == "" || domains[i].ID < 0 {
				t.Errorf("%+v", domains[i])
			}
		}
	})
}

func FuzzParseVCPUs(f *testing.F) {
	f.Add(captured(f, "vcpu-list"))
	f.Add(captured(f, "vcpu-list4"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseVCPUs(data)
		if err != nil {
			return
		}
		for _, vcpus := range all {
			for _, v := range vcpus {
				if v.CPU < -1 || v.ID < 0 || v.Run < 0 {
					t.Errorf("%+v", v)
				}
			}
		}
	})
}

func FuzzParseConfigs(f *testing.F) {
	f.Add(captured(f, "list-l"))
	f.Add([]byte(`[{"domid":1,"config":{"b_info":{"vnuma_nodes":[{"memkb":1,"vcpus":[0,-1,99999],"distances":[10]}]}}}]`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		all, _ := parseConfigs(data)
		for _, c := range all {
			c.inventory()
		}
	})
}

func FuzzParseDump(f *testing.F) {
	f.Add(captured(f, "dmesg"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parseDump(data)
		if err == nil && len(d.nodes)+len(d.cut) == 0 {
			t.Error("no domain, and no error")
		}
	})
}

func FuzzParseIntents(f *testing.F) {
	f.Add([]byte(intentFolder + `/00000001-0000-4000-8000-000000000001/0 = "1:bm90IGFuIGludGVudA=="`))
	f.Fuzz(func(_ *testing.T, data []byte) { parseIntents(data) })
}

// xl writes a letter for the reason of a shutdown: a VM that is suspended for a migration, or that restarts, hides no
// other one.
func TestParseDomains_ShutDown(t *testing.T) {
	const head = "Name                                        ID   Mem VCPUs\tState\tTime(s)         Cpupool NODE Affinity\n"
	for state, want := range map[string]string{"---ss-": "shutoff", "---sr-": "shutoff", "---s--": "shutoff",
		"---sc-": "shutoff", "---sw-": "shutoff", "---sS-": "shutoff", "---s?-": "shutoff", "-----d": "shutoff",
		"-b----": "running", "--p---": "paused"} {
		all, err := parseDomains([]byte(head +
			"web                                          3   192     2     " + state + "       3.0          Pool-0 all\n"))
		if err != nil || len(all) != 1 || all[0].runState() != want {
			t.Errorf("%s: %+v, %v; want %s", state, all, err, want)
		}
	}
}
