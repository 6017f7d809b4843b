package linux

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestResidentCountsSharedMemoryOnce(t *testing.T) {
	stat, err := ParseNUMAStat([]byte("anon N0=100 N1=20\nfile N0=1000 N1=5000\nshmem N0=0 N1=4000\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(byNode{0: 100, 1: 4020}, stat.Resident()); diff != "" {
		t.Errorf("anon + shmem, since shmem is inside file:\n%s", diff)
	}
	if stat["anon"][1] != 20 {
		t.Error("Resident changed what it was computed from")
	}
}

func TestParseNUMAStat_RefusesPartialFigures(t *testing.T) {
	for _, text := range []string{"anon N0=", "anon N0=12x", "anon 0=1", "anon N=1", "anon N70000=1", "anon " +
		"N0=99999999999999999999", "anon N0=-1"} {
		if stat, err := ParseNUMAStat([]byte(text)); err == nil {
			t.Errorf("%q passed as %v", text, stat)
		}
	}
	for _, text := range []string{"", "N0=1", "total= N0=x"} {
		if figures, err := ParseHugetlbNUMAStat([]byte(text)); err == nil {
			t.Errorf("%q passed as %v", text, figures)
		}
	}
}

func TestMemoryOfCapturedGuests(t *testing.T) {
	for _, c := range []struct {
		name, source, wantSource string
		pageSize                 topology.Bytes
		want                     byNode
	}{
		{"anon", "", "cgroup memory.numa_stat + hugetlb.*.numa_stat", 0, byNode{0: 622592, 1: 138272768 + 4096,
			2: 9273344, 3: 32768}},
		{"huge", "", "cgroup memory.numa_stat + hugetlb.*.numa_stat", 2 * mib, nil},
		{"memfd", "memfd", "cgroup memory.numa_stat + hugetlb.*.numa_stat", 0, nil},
		{"file", "file", "numa_maps", 0, nil},
		{"plain", "", "numa_maps", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, pid := captured(t, c.name)
			got, source, err := root.Memory(
				inventory.Guest{PID: pid, Config: inventory.Config{Source: c.source, PageSize: c.pageSize}})
			if err != nil || source != c.wantSource {
				t.Fatalf("source %q, error %v", source, err)
			}
			if c.want != nil {
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Error(diff)
				}
			}
			agree(t, got, mapped(t, root, pid, c.source == BackingFile))
		})
	}
}

// mapped sums numa_maps over the guest's mappings, as the slow twin of Memory.
func mapped(t *testing.T, root Root, pid int, withFiles bool) byNode {
	t.Helper()
	mappings, _, err := root.NUMAMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	sum := byNode{}
	for _, m := range mappings {
		if m.File == "" || m.Huge || m.Anon > 0 || strings.HasPrefix(m.File, "/memfd:") || withFiles {
			for node, amount := range m.ByNode() {
				sum[node] += amount
			}
		}
	}
	return sum
}

// agree allows for the difference between the two sources: cgroup figures lag
// behind by up to 64 pages a CPU, 8 CPUs here.
func agree(t *testing.T, a, b byNode) {
	t.Helper()
	const tolerance = 2 * mib
	for node := topology.NodeID(0); node < 4; node++ {
		if diff := max(a[node], b[node]) - min(a[node], b[node]); diff > tolerance {
			t.Errorf("node %d: %v by one source, %v by the other", node, a[node], b[node])
		}
	}
}

func TestHugePagesNotCountedByTheCgroupFallBackToNUMAMaps(t *testing.T) {
	root, pid := captured(t, "huge")
	group, ok, err := root.GuestCgroupOf(pid)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	for _, f := range []string{"hugetlb.2MB.numa_stat", "hugetlb.1GB.numa_stat"} {
		removeFile(t, group.Top.file(f))
	}
	got, source, err := root.Memory(inventory.Guest{PID: pid, Config: inventory.Config{PageSize: 2 * mib}})
	if err != nil || source != "numa_maps" || got[0] < 64*mib || got[1] < 64*mib {
		t.Errorf("%v from %s, error %v", got, source, err)
	}
}

func TestHugePagesThatTheCgroupMissedFallBackToNUMAMaps(t *testing.T) {
	root, pid := captured(t, "huge")
	g := inventory.Guest{PID: pid, Config: inventory.Config{PageSize: 2 * mib, Memory: 128 * mib}}
	if _, source, err := root.Memory(g); err != nil || source == "numa_maps" {
		t.Errorf("the cgroup counts all memory, yet the source is %s, error %v", source, err)
	}
	g.Config.Memory = 256 * mib // as if half had been allocated before the controller was enabled
	if _, source, err := root.Memory(g); err != nil || source != "numa_maps" {
		t.Errorf("the cgroup counts half of the memory, yet the source is %s, error %v", source, err)
	}
}

func FuzzParseNUMAStat(f *testing.F) {
	f.Add([]byte("anon N0=4096 N1=0\nfile N0=1 N1=2\nshmem N0=1 N1=1\n"))
	f.Add([]byte("anon N0=18446744073709551615\n"))
	f.Add([]byte("total=0 N0=0"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if stat, err := ParseNUMAStat(data); err == nil {
			for node := range stat.Resident() {
				if node < 0 || node > 65535 {
					t.Errorf("node %d", node)
				}
			}
		}
		if figures, err := ParseHugetlbNUMAStat(data); err == nil && figures == nil {
			t.Error("neither figures nor an error")
		}
	})
}

// The loop reads cgroups and not numa_maps: this is the cost of parsing
// numa_maps.
func BenchmarkMemoryNUMAStat(b *testing.B) {
	root, pid := captured(b, "anon")
	group, _, err := root.GuestCgroupOf(pid)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := group.Top.MemoryNUMAStat(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNUMAMaps(b *testing.B) {
	root, pid := captured(b, "anon")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := root.NUMAMaps(pid); err != nil {
			b.Fatal(err)
		}
	}
}
