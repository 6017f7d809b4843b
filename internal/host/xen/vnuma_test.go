package xen

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

const virtual = `name = "db"
type = "hvm"
# two nodes, as the database wants it
vnuma = [ [ "pnode=0","size=384","vcpus=0,2","vdistances=10,20" ], # the large one
          ['size=128', 'vcpus = 1', " pnode = 0 ", 'vdistances=20,10'] ]
memory = 512 # in all
vcpus = 3
`

// cellsOn is a placement of two cells of one vCPU each.
func cellsOn(first, second topology.NodeID) *guest.Placement {
	p := placedOn("0-3", "4-7")
	p.Visible = true
	for i, node := range []topology.NodeID{first, second} {
		p.Cells = append(p.Cells, guest.Cell{ID: guest.CellID(i), VCPUs: topology.SetOf(guest.VCPUID(i)),
			Memory: 256 * topology.MiB, Nodes: topology.SetOf(node), Distances: [][]int{{10, 21}, {21, 10}}[i]})
	}
	return p
}

func parsed(t *testing.T, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRewrite_VirtualNodes(t *testing.T) {
	binding := "cpus = [ \"0-3\", \"4-7\" ]\ncpus_soft = [ \"0-3\", \"4-7\" ]\n"
	for about, c := range map[string]struct{ given, want string }{
		"new": {"name = 'db'\n", "name = 'db'\n" + binding + `vnuma = [
  [ "pnode=1", "size=256", "vcpus=0", "vdistances=10,21" ],
  [ "pnode=0", "size=256", "vcpus=1", "vdistances=21,10" ]
]
`},
		"there": {virtual, strings.NewReplacer(`pnode=0`, "pnode=1", `10,20`, `10,21`, ` pnode = 0 `, `pnode=0`,
			`20,10`, `21,10`).Replace(virtual) + binding},
	} {
		if got := string(parsed(t, c.given).Rewrite(cellsOn(1, 0))); got != c.want {
			t.Errorf("%s: rewritten to\n%s\nwant\n%s", about, got, c.want)
		}
	}
	hidden := cellsOn(1, 0)
	hidden.Visible = false
	if got := string(parsed(t, "name = 'db'\n").Rewrite(hidden)); strings.Contains(got, "vnuma") {
		t.Errorf("a VM that sees no cells gets\n%s", got)
	}
}

// A configuration without virtual nodes is rewritten with them, and has those of the placement then, whatever their
// number, sizes and vCPUs are.
func TestRewrite_VirtualNodesAreThoseOfThePlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := placedOn()
		p.Visible, p.CPUMode = true, guest.CPUNone
		first := guest.VCPUID(0)
		n := rapid.IntRange(1, 8).Draw(t, "cells")
		for i := range n {
			last := first + guest.VCPUID(rapid.IntRange(0, 5).Draw(t, "more vCPUs"))
			p.Cells = append(p.Cells, guest.Cell{ID: guest.CellID(i), VCPUs: topology.Range(first, last),
				Memory:    topology.Bytes(rapid.IntRange(1, 1<<20).Draw(t, "MiB")) * topology.MiB,
				Nodes:     topology.SetOf(topology.NodeID(rapid.IntRange(0, 63).Draw(t, "node"))),
				Distances: rapid.SliceOfN(rapid.IntRange(10, 254), n, n).Draw(t, "distances")})
			first = last + 1
		}
		c, err := ParseConfig([]byte("name = 'x'"))
		if err != nil {
			t.Fatal(err)
		}
		text := c.Rewrite(p)
		if c, err = ParseConfig(text); err != nil {
			t.Fatal(err)
		}
		nodes, err := c.virtualNodes()
		if err != nil || len(nodes) != n {
			t.Fatalf("%d nodes, %v in\n%s", len(nodes), err, text)
		}
		for i, got := range nodes {
			want := &p.Cells[i]
			if got.memory != want.Memory || !got.vcpus.Equal(want.VCPUs) || got.pnode.text != pnode(want) ||
				got.distances.text != vdistances(want) {
				t.Errorf("node %d is %+v, want %+v", i, got, want)
			}
		}
	})
}

func TestSpec_HasTheVirtualNodes(t *testing.T) {
	topo := synthetic(t)
	for _, text := range []string{virtual, strings.NewReplacer("memory = 512 # in all\n", "", "vcpus = 3\n", "").
		Replace(virtual)} {
		s, err := parsed(t, text).Spec(&topo)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.Normalize(); err != nil {
			t.Fatal(err)
		}
		if s.VCPUs != 3 || s.Memory != 512*topology.MiB || len(s.Topology.Cells) != 2 || s.Topology.Cells[0].VCPUs != 2 ||
			s.Topology.Cells[1].Memory != 128*topology.MiB {
			t.Errorf("spec is %+v", s)
		}
	}
}

func TestCheckCells_Refuses(t *testing.T) {
	topo := synthetic(t)
	with := func(old, changed string) string {
		if !strings.Contains(virtual, old) {
			t.Fatalf("%q is not there", old)
		}
		return strings.Replace(virtual, old, changed, 1)
	}
	auto := guest.TopologySpec{Mode: guest.TopologyAuto}
	plain := "name = 'x'\nvcpus = 2\nmemory = 512\ntype = "
	for _, c := range []struct {
		text  string
		asked guest.TopologySpec
		says  string
	}{
		{with(`type = "hvm"`, `type = "pvh"`), guest.TopologySpec{}, "PVH"},
		{with(`type = "hvm"`, ``), guest.TopologySpec{}, "pv"},
		{with("memory = 512", "memory = 512\nmaxmem = 1024"), guest.TopologySpec{}, "memory"},
		{with(`"pnode=0",`, ""), guest.TopologySpec{}, "pnode"},
		{with("'size=128'", "'size=many'"), guest.TopologySpec{}, "size"},
		{with("'vcpus = 1'", "'vcpus = 0'"), guest.TopologySpec{}, "each vCPU"},
		{with("'vcpus = 1'", "'vcpus = 4'"), guest.TopologySpec{}, "each vCPU"},
		{with("'vcpus = 1'", "'cpus = 1'"), guest.TopologySpec{}, "cpus"},
		{with("'vcpus = 1'", "1"), guest.TopologySpec{}, "text"},
		{virtual + "vnuma = []\n", guest.TopologySpec{}, "once"},
		{virtual + "vnuma += []\n", guest.TopologySpec{}, "once"},
		{"name = 'x'\nvnuma = []\n", guest.TopologySpec{}, "list"},
		{virtual, auto, "--topology"},
		{plain + "'pvh'\n", auto, "PVH"},
		{plain + "'pv'\n", auto, "pv"},
		{plain + "'hvm'\nmaxmem = 600\n", auto, "memory"},
		{plain + "'hvm'\n", guest.TopologySpec{Mode: guest.TopologyCells, Count: 1,
			Cells: []guest.CellSpec{{VCPUs: 2, Memory: 512*topology.MiB + 4096}}}, "whole MiB"},
	} {
		config := parsed(t, c.text)
		s, err := config.Spec(&topo)
		if c.asked.Mode != "" {
			if err != nil {
				t.Fatal(err)
			}
			s.Topology = c.asked
			err = config.CheckCells(&s)
		}
		var refused *CellsError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s\nwith %+v: error %v, want one that names %q", c.text, c.asked, err, c.says)
		}
	}
	s, err := parsed(t, plain+"'hvm'\n").Spec(&topo)
	if s.Topology = auto; err != nil || parsed(t, plain+"'hvm'\n").CheckCells(&s) != nil {
		t.Errorf("an HVM VM: %v", err)
	}
}

// creating is the request for a configuration, with a topology if one is asked for.
func creating(t *testing.T, h *operate.Host, text string, asked guest.TopologySpec) operate.CreateRequest {
	t.Helper()
	r, c := request(t, h, text), parsed(t, text)
	if asked.Mode != "" {
		r.Spec.Topology = asked
	}
	if err := c.CheckCells(&r.Spec); err != nil {
		t.Fatal(err)
	}
	r.Cells = c.Cells()
	return r
}

// The memory of each cell is on its node, and so are the vCPUs, whatever their numbers are; bind leaves them there.
func TestCreate_WithVirtualNodes(t *testing.T) {
	two := guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
	for about, c := range map[string]struct {
		text  string
		asked guest.TopologySpec
		sizes map[int]int // MiB by vCPU: of its cell
	}{
		"by a flag":                     {"name = 'db'\ntype = 'hvm'\nvcpus = 2\nmemory = 512\n", two, map[int]int{0: 256, 1: 256}},
		"of the configuration":          {virtual, guest.TopologySpec{}, map[int]int{0: 384, 1: 128, 2: 384}},
		"that one node has no room for": {strings.Replace(virtual, "384", "6000", 1), guest.TopologySpec{}, nil},
	} {
		t.Run(about, func(t *testing.T) {
			h, s := joined(t)
			if c.sizes == nil {
				r := creating(t, h, strings.Replace(c.text, "memory = 512", "memory = 6128", 1), c.asked)
				if _, err := h.Create(t.Context(), r); err == nil || len(s.domains) > 1 {
					t.Errorf("a cell of 6000 MiB fits no node, and the error is %v", err)
				}
				return
			}
			made, err := h.Create(t.Context(), creating(t, h, c.text, c.asked))
			if err != nil || len(made.Shortfalls()) > 0 || made.Truth.MemoryOnIntended == nil ||
				*made.Truth.MemoryOnIntended != 1 {
				t.Fatalf("error %v, shortfalls %v, truth %+v", err, made.Shortfalls(), made.Truth)
			}
			d := s.domains[1]
			d.cellsHaveTheirVCPUs(t, s, c.sizes)
			change := func(s guest.Spec) (guest.Spec, error) { return s, nil }
			if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "db", Change: change}); err != nil {
				t.Fatal(err)
			}
			d.cellsHaveTheirVCPUs(t, s, c.sizes)
		})
	}
}

// cellsHaveTheirVCPUs requires that vCPUs are pinned to the node of the cell that they are in.
func (d *simDomain) cellsHaveTheirVCPUs(t *testing.T, s *simulated, sizes map[int]int) {
	t.Helper()
	for v, size := range sizes {
		for _, cell := range d.cells {
			if !cell.vcpus.Contains(guest.VCPUID(v)) {
				continue
			}
			cpus := s.topology.Nodes[cell.node].CPUs
			if cell.memory != size || !d.hard[v].Equal(cpus) || !d.soft[v].Equal(cpus) {
				t.Errorf("vCPU %d has the affinities %s / %s, its cell %d MiB on node %d; want CPUs %s and %d MiB", v, d.hard[v],
					d.soft[v], cell.memory, cell.node, cpus, size)
			}
		}
	}
}

// Cells stay where their memory is also if Numavisor did not create the VM, and placing would choose other nodes.
// Memory that is on other nodes than the cells is found.
func TestBind_CellsStay(t *testing.T) {
	h, s := joined(t)
	d := s.add("db", 1, "0-7", 2)
	d.memory = 512
	d.cells = []simCell{{1, 256, topology.SetOf[guest.VCPUID](0)}, {0, 256, topology.SetOf[guest.VCPUID](1)}}
	if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "db"}); err != nil {
		t.Fatal(err)
	}
	d.cellsHaveTheirVCPUs(t, s, map[int]int{0: 256, 1: 256})
	view, _, err := h.Show(t.Context(), "db")
	if err != nil || len(view.Truth.Differences) > 0 || len(view.Cells) != 2 ||
		view.Cells[0].Intended.String() != "1" || view.Cells[1].VCPUs.String() != "1" || view.Cells[1].Memory != 256*topology.MiB {
		t.Errorf("%v, differences %v, cells %+v", err, view.Truth.Differences, view.Cells)
	}
	d.cells[0].node = 0                    // both cells on node 0: as if node 1 had been full
	d.memory, d.cells[0].memory = 513, 257 // so that Xen is asked again where the memory is
	view, _, err = h.Show(t.Context(), "db")
	if err != nil || len(view.Truth.Differences) != 1 ||
		!strings.Contains(view.Truth.Differences[0].String(), "the cells have their memory on node 0: 513 MiB") {
		t.Errorf("%v, differences %v", err, view.Truth.Differences)
	}
}
