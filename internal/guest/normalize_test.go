package guest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/topology"
)

func small() guest.Spec { return guest.Spec{VCPUs: 8, Memory: 16 * gib} }

func TestNormalizeFillsDefaults(t *testing.T) {
	defaults := guest.Spec{
		VCPUs: 8, Memory: 16 * gib,
		CPU: guest.CPUSpec{
			Binding:  guest.CPURange,
			SMT:      guest.SMTAny,
			Emulator: guest.HelperNodes,
			IOPolicy: guest.HelperNodes,
		},
		Binding:  guest.MemorySpec{Mode: guest.MemoryPreferred},
		Topology: guest.TopologySpec{Mode: guest.TopologyAuto},
	}
	no := false
	for _, c := range []struct {
		name   string
		change func(asked, want *guest.Spec)
	}{
		{"vCPUs and memory are enough", func(_, _ *guest.Spec) {}},
		{"huge pages are always allocated at start", func(asked, want *guest.Spec) {
			asked.PageSize, want.PageSize = 2*topology.MiB, 2*topology.MiB
			want.Binding.Immediate = true
		}},
		{"a number of cells is mode cells", func(asked, want *guest.Spec) {
			asked.Topology.Count = 2
			want.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
		}},
		{"cells give the sums", func(asked, want *guest.Spec) {
			asked.VCPUs, asked.Memory = 0, 0
			asked.Topology.Cells = []guest.CellSpec{{VCPUs: 6, Memory: 12 * gib}, {VCPUs: 2, Memory: 4 * gib}}
			want.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2, Cells: asked.Topology.Cells}
		}},
		{"passthrough cannot move", func(asked, want *guest.Spec) {
			asked.Devices = []guest.DeviceSpec{{Address: "3B:00.0", Passthrough: true}}
			want.Devices = []guest.DeviceSpec{{Address: "0000:3b:00.0", Passthrough: true}}
			want.Movable = &no
		}},
		{"restrictive shows no cells by itself", func(asked, want *guest.Spec) {
			asked.Binding.Mode, want.Binding.Mode = guest.MemoryRestrictive, guest.MemoryRestrictive
			want.Topology.Mode = guest.TopologyOff
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked, want := small(), defaults
			c.change(&asked, &want)
			got, err := asked.Normalize()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNormalizeRefuses(t *testing.T) {
	yes := true
	for _, c := range []struct {
		name, field string
		says        string
		change      func(*guest.Spec)
	}{
		{"no vCPU", "vcpus", "1 to", func(s *guest.Spec) { s.VCPUs = 0 }},
		{"negative vCPUs", "vcpus", "-4", func(s *guest.Spec) { s.VCPUs = -4 }},
		{"a million vCPUs", "vcpus", "4096", func(s *guest.Spec) { s.VCPUs = 1e6 }},
		{"no memory", "memory", "16G", func(s *guest.Spec) { s.Memory = 0 }},
		{"odd memory", "memory", "4 KiB", func(s *guest.Spec) { s.Memory++ }},
		{"too much memory", "memory", "64 TiB", func(s *guest.Spec) { s.Memory = 1 << 62 }},
		{"part of a huge page", "memory", "1 GiB", func(s *guest.Spec) { s.PageSize, s.Memory = gib, 5*gib/2 }},
		{"a page of 4K", "page_size", "0 (the host's small pages)", func(s *guest.Spec) { s.PageSize = 4096 }},
		{"a page of 3M", "page_size", "power of two", func(s *guest.Spec) { s.PageSize = 3 * topology.MiB }},
		{"a name with a slash", "name", "'/'", func(s *guest.Spec) { s.Name = "a/b" }},
		{"a name with a line break", "name", "line break", func(s *guest.Spec) { s.Name = "a\nb" }},
		{"a blank name", "name", "spaces", func(s *guest.Spec) { s.Name = "  " }},
		{"a name that is a folder", "name", "dots", func(s *guest.Spec) { s.Name = ".." }},
		{"a long name", "name", "240", func(s *guest.Spec) { s.Name = strings.Repeat("x", 241) }},
		{"a name that is no text", "name", "text", func(s *guest.Spec) { s.Name = "a\xff" }},
		{"unknown CPU binding", "cpu.binding", "none, range, exclusive", func(s *guest.Spec) { s.CPU.Binding = "pin" }},
		{"unknown SMT policy", "cpu.smt", "isolate", func(s *guest.Spec) { s.CPU.SMT = "off" }},
		{"isolate without CPUs of one's own", "cpu.smt", "exclusive",
			func(s *guest.Spec) { s.CPU.SMT = guest.SMTIsolate }},
		{"unknown emulator policy", "cpu.emulator", "housekeeping", func(s *guest.Spec) { s.CPU.Emulator = "here" }},
		{"unknown I/O thread policy", "cpu.io_thread_policy", "housekeeping",
			func(s *guest.Spec) { s.CPU.IOPolicy = "here" }},
		{"negative I/O threads", "cpu.io_threads", "0 to 1024", func(s *guest.Spec) { s.CPU.IOThreads = -1 }},
		{"unknown memory mode", "memory_binding.mode", "interleave", func(s *guest.Spec) { s.Binding.Mode = "bind" }},
		{"restrictive over two cells", "memory_binding.mode", "restrictive", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Count = guest.MemoryRestrictive, 2
		}},
		{"restrictive over however many are needed", "memory_binding.mode", "restrictive", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Mode = guest.MemoryRestrictive, guest.TopologyAuto
		}},
		{"unknown topology", "topology.mode", "mirror", func(s *guest.Spec) { s.Topology.Mode = "on" }},
		{"a count where none is wanted", "topology.count", "mode cells",
			func(s *guest.Spec) { s.Topology = guest.TopologySpec{Mode: guest.TopologyAuto, Count: 2} }},
		{"cells where none are wanted", "topology.cells", "mode cells", func(s *guest.Spec) {
			s.Topology = guest.TopologySpec{Mode: guest.TopologyMirror,
				Cells: []guest.CellSpec{{VCPUs: 8, Memory: 16 * gib}}}
		}},
		{"cells without a number", "topology.count", "1 to 8",
			func(s *guest.Spec) { s.Topology.Mode = guest.TopologyCells }},
		{"more cells than vCPUs", "topology.count", "1 to 8", func(s *guest.Spec) { s.Topology.Count = 9 }},
		{"more cells than huge pages", "topology.count", "1 to 2", func(s *guest.Spec) {
			s.PageSize, s.Memory, s.Topology.Count = gib, 2*gib, 3
		}},
		{"count and list differ", "topology.count", "2, the length", func(s *guest.Spec) {
			s.Topology.Count, s.Topology.Cells = 3, []guest.CellSpec{{VCPUs: 4, Memory: 8 * gib},
				{VCPUs: 4, Memory: 8 * gib}}
		}},
		{"vCPUs do not sum up", "topology.cells", "7 vCPUs in all", func(s *guest.Spec) {
			s.Topology.Cells = []guest.CellSpec{{VCPUs: 3, Memory: 8 * gib}, {VCPUs: 4, Memory: 8 * gib}}
		}},
		{"memory does not sum up", "topology.cells", "17 GiB in all", func(s *guest.Spec) {
			s.Topology.Cells = []guest.CellSpec{{VCPUs: 4, Memory: 9 * gib}, {VCPUs: 4, Memory: 8 * gib}}
		}},
		{"a cell without vCPUs", "topology.cells[1].vcpus", "1 to", func(s *guest.Spec) {
			s.Topology.Cells = []guest.CellSpec{{VCPUs: 8, Memory: 8 * gib}, {Memory: 8 * gib}}
		}},
		{"a cell of part of a page", "topology.cells[0].memory", "2 MiB", func(s *guest.Spec) {
			s.PageSize = 2 * topology.MiB
			s.Topology.Cells = []guest.CellSpec{{VCPUs: 8, Memory: topology.MiB}}
		}},
		{"nearer than near", "limits.max_distance", "10", func(s *guest.Spec) { s.Limits.MaxDistance = 9 }},
		{"a distance that is none", "limits.max_distance", "254", func(s *guest.Spec) { s.Limits.MaxDistance = 255 }},
		{"unknown class", "limits.max_class", "neighbour", func(s *guest.Spec) { s.Limits.MaxClass = "near" }},
		{"negative nodes", "limits.max_nodes", "-1", func(s *guest.Spec) { s.Limits.MaxNodes = -1 }},
		{"mirror of a part that is not named", "limits.max_nodes", "mirror", func(s *guest.Spec) {
			s.Topology.Mode, s.Limits.MaxNodes = guest.TopologyMirror, 2
		}},
		{"fewer CPUs than exclusive vCPUs", "limits.cpus", "at least 8", func(s *guest.Spec) {
			s.CPU.Binding, s.Limits.CPUs = guest.CPUExclusive, cpus("0-6")
		}},
		{"a device that is none", "devices[0].address", "lspci",
			func(s *guest.Spec) { s.Devices = []guest.DeviceSpec{{Address: "eth0"}} }},
		{"a device twice", "devices[1].address", "once", func(s *guest.Spec) {
			s.Devices = []guest.DeviceSpec{{Address: "0000:3B:00.0"}, {Address: "3b:00.0"}}
		}},
		{"passthrough that must move", "devices[0].passthrough", "vfio", func(s *guest.Spec) {
			s.Devices, s.Movable = []guest.DeviceSpec{{Address: "3b:00.0", Passthrough: true}}, &yes
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := small()
			c.change(&s)
			_, err := s.Normalize()
			var f *strictyaml.FieldError
			if !errors.As(err, &f) {
				t.Fatalf("error %v, want a FieldError", err)
			}
			if f.Field != c.field || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q; want field %s, saying %q", err, c.field, c.says)
			}
		})
	}
}

func TestNormalizeAllows(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*guest.Spec)
	}{
		{"one cell with restrictive", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Count = guest.MemoryRestrictive,
				1
		}},
		{"auto with restrictive on one node", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Mode, s.Limits.MaxNodes = guest.MemoryRestrictive, guest.TopologyAuto, 1
		}},
		{"several cells spread over all nodes", func(s *guest.Spec) {
			s.Binding.Mode,
				s.Topology.Count = guest.MemoryInterleave, 4
		}},
		{"page sizes of other architectures", func(s *guest.Spec) { s.PageSize = 512 * topology.MiB }},
		{"a name of other letters", func(s *guest.Spec) { s.Name = "Büro 2 – Datenbank" }},
		{"passthrough that must not move", func(s *guest.Spec) {
			s.Devices, s.Movable = []guest.DeviceSpec{{Address: "10000:01:00.1", Passthrough: true}}, new(bool)
		}},
		{"a mirror of named nodes", func(s *guest.Spec) {
			s.Topology.Mode, s.Limits.Nodes = guest.TopologyMirror,
				nodes("0-3")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := small()
			c.change(&s)
			if _, err := s.Normalize(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNormalizeReportsEveryField(t *testing.T) {
	_, err := guest.Spec{VCPUs: -1, CPU: guest.CPUSpec{Binding: "x"}, Limits: guest.Limits{MaxDistance: 1}}.Normalize()
	for _, field := range []string{"vcpus", "memory", "cpu.binding", "limits.max_distance"} {
		if err == nil || !strings.Contains(err.Error(), field+" is ") {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

// A spec that Normalize accepts holds the invariants of placement. The result
// is itself normal, and the original spec is unchanged.
func TestNormalSpecsHoldTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpec(t)
		right := rapid.Bool().Draw(t, "put right")
		if right {
			s = putRight(s)
		}
		before := drawn(t, s)
		n, err := s.Normalize()
		if diff := cmp.Diff(before, drawn(t, s)); diff != "" {
			t.Fatalf("Normalize changed its receiver:\n%s", diff)
		}
		if right && err != nil {
			t.Fatalf("refused, though nothing is wrong with it: %v", err)
		}
		if err != nil {
			return
		}
		again, err := n.Normalize()
		if diff := cmp.Diff(n, again); err != nil || diff != "" {
			t.Fatalf("a second time: %v\n%s", err, diff)
		}
		switch {
		case n.VCPUs < 1 || n.Memory == 0:
			t.Fatalf("nothing to place: %+v", n)
		case n.PageSize > 0 && n.Memory%n.PageSize != 0:
			t.Fatalf("%v is not whole pages of %v", n.Memory, n.PageSize)
		case n.Topology.Mode != guest.TopologyCells && n.Topology.Count != 0:
			t.Fatalf("%d cells in mode %s", n.Topology.Count, n.Topology.Mode)
		case n.Topology.Mode == guest.TopologyCells && (n.Topology.Count < 1 || n.Topology.Count > n.VCPUs):
			t.Fatalf("%d cells for %d vCPUs", n.Topology.Count, n.VCPUs)
		}
		vcpus, memory := 0, topology.Bytes(0)
		for _, c := range n.Topology.Cells {
			vcpus, memory = vcpus+c.VCPUs, memory+c.Memory
		}
		if len(n.Topology.Cells) > 0 && (vcpus != n.VCPUs || memory != n.Memory) {
			t.Fatalf("cells have %d vCPUs and %v of %d and %v", vcpus, memory, n.VCPUs, n.Memory)
		}
		for _, d := range n.Devices {
			if d.Passthrough && n.IsMovable() {
				t.Fatalf("%s is passed through to a guest that must be movable", d.Address)
			}
		}
	})
}

// drawn copies the values that the spec points to.
func drawn(t *rapid.T, s guest.Spec) guest.Spec {
	s.Devices = append([]guest.DeviceSpec(nil), s.Devices...)
	s.Topology.Cells = append([]guest.CellSpec(nil), s.Topology.Cells...)
	if s.Movable != nil {
		m := *s.Movable
		s.Movable = &m
	}
	return s
}

// putRight corrects every fault that drawSpec introduces.
func putRight(s guest.Spec) guest.Spec {
	s.Name, s.VCPUs, s.Memory = "", max(s.VCPUs, 1), (s.Memory/gib+8)*gib
	if s.PageSize%(2*topology.MiB) != 0 {
		s.PageSize = 0
	}
	if s.CPU.Binding == "tight" || s.CPU.SMT == guest.SMTRequire || s.CPU.SMT == guest.SMTIsolate {
		s.CPU.Binding = guest.CPUExclusive
	}
	t := &s.Topology
	t.Cells, t.Count = nil, min(t.Count, s.VCPUs)
	switch {
	case s.Binding.Mode == guest.MemoryRestrictive:
		*t = guest.TopologySpec{Mode: guest.TopologyOff}
	case t.Mode == guest.TopologyCells:
		t.Count = max(t.Count, 1)
	case t.Mode != "":
		t.Count = 0
	}
	if s.Limits.MaxDistance < 10 || s.Limits.MaxDistance > 254 {
		s.Limits.MaxDistance = 0
	}
	if s.Limits.CPUs.Len() < s.VCPUs {
		s.Limits.CPUs = topology.CPUSet{}
	}
	if t.Mode == guest.TopologyMirror {
		s.Limits.MaxNodes = 0
	}
	s.Devices = s.Devices[:min(len(s.Devices), 1)]
	return s
}
