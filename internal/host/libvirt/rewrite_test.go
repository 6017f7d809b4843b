package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/beevik/etree"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// fixtures are the domain XMLs in testdata/domains, by file name without suffix.
func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/domains/*.xml")
	if err != nil || len(files) < 12 {
		t.Fatalf("fixtures: found %d, %v", len(files), err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".xml")] = text
	}
	return all
}

func mustParse(t testing.TB, xml []byte) Domain {
	t.Helper()
	d, err := ParseDomain(xml)
	if err != nil {
		t.Fatalf("%v\n%s", err, xml)
	}
	return d
}

// drawPlacement draws a placement that agrees with a domain.
func drawPlacement(t *rapid.T, d Domain) guest.Placement {
	p := guest.Placement{
		Guest: d.Name,
		MemoryMode: rapid.SampledFrom([]guest.MemoryMode{guest.MemoryNone, guest.MemoryPreferred, guest.MemoryStrict,
			guest.MemoryInterleave, guest.MemoryRestrictive}).
			Draw(t, "mode"),
		CPUMode: rapid.SampledFrom([]guest.CPUMode{guest.CPUNone, guest.CPURange, guest.CPUExclusive}).
			Draw(t, "cpu mode"),
		PageSize: d.Config.PageSize, Movable: rapid.Bool().Draw(t, "movable"), IOThreads: len(d.IOThreads),
	}
	if p.MemoryMode == guest.MemoryNone && (d.Config.Locked || d.Config.Immediate || p.PageSize > 0) {
		p.MemoryMode = guest.MemoryPreferred
	}
	p.Immediate = p.MemoryMode != guest.MemoryNone && rapid.Bool().Draw(t, "immediate")
	host := rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 1, 3, rapid.ID[int]).Draw(t, "nodes")
	if strings.Contains(d.Name, "vhost") { // its memory device names node 1
		host = []int{1, 3}
	}
	p.Cells, p.Visible = drawCells(t, d)
	for i := range p.Cells {
		node := host[i%len(host)]
		p.Cells[i].Nodes = topology.SetOf(topology.NodeID(node))
		if p.MemoryMode == guest.MemoryInterleave || rapid.IntRange(0, 3).Draw(t, "wide") == 0 {
			for _, n := range host {
				p.Cells[i].Nodes = p.Cells[i].Nodes.With(topology.NodeID(n))
			}
		}
		if p.Visible && len(p.Cells) > 1 {
			for j := range p.Cells {
				distance := rapid.IntRange(11, 60).Draw(t, "distance")
				if i == j {
					distance = 10
				}
				p.Cells[i].Distances = append(p.Cells[i].Distances, distance)
			}
		}
	}
	for _, n := range host {
		p.Nodes = p.Nodes.With(topology.NodeID(n))
	}
	drawThreads(t, d, &p)
	return p
}

func drawCells(t *rapid.T, d Domain) (cells []guest.Cell, visible bool) {
	if have := d.Config.Cells; len(have) > 0 {
		for _, c := range have {
			cells = append(cells, guest.Cell{ID: c.ID, VCPUs: c.VCPUs, Memory: c.Memory})
		}
		return cells, rapid.Bool().Draw(t, "visible")
	}
	n := rapid.IntRange(1, min(3, d.Config.VCPUs)).Draw(t, "cells")
	unit := max(d.Config.PageSize, topology.MiB)
	share := d.BootMemory / topology.Bytes(n) / unit * unit
	for i := range n {
		cells = append(cells, guest.Cell{ID: guest.CellID(i), Memory: share})
	}
	cells[0].Memory = d.BootMemory - share*topology.Bytes(n-1)
	for v := range d.Config.VCPUs {
		c := &cells[v%n]
		c.VCPUs = c.VCPUs.With(guest.VCPUID(v))
	}
	return cells, n > 1 && rapid.Bool().Draw(t, "visible")
}

func drawThreads(t *rapid.T, d Domain, p *guest.Placement) {
	for v := range d.Config.VCPUs {
		one := guest.VCPU{ID: guest.VCPUID(v)}
		cell, _ := p.CellOf(one.ID)
		node, _ := cell.Nodes.First()
		switch p.CPUMode {
		case guest.CPURange:
			one.CPUs = topology.Range(topology.CPUID(node)*16, topology.CPUID(node)*16+7)
		case guest.CPUExclusive:
			one.CPUs = topology.SetOf(topology.CPUID(int(node)*16 + v))
		case guest.CPUNone, guest.CPUHandoff: // a mirrored VM has no nodes of its own
		}
		p.VCPUs = append(p.VCPUs, one)
	}
	if rapid.Bool().Draw(t, "emulator bound") {
		for n := range p.Nodes.All() {
			p.Emulator = p.Emulator.Union(topology.Range(topology.CPUID(n)*16, topology.CPUID(n)*16+15))
		}
	}
	if len(d.IOThreads) > 0 && rapid.Bool().Draw(t, "I/O threads bound") {
		p.IOThread = topology.SetOf(topology.CPUID(3))
	}
}

// TestRewriteChangesOnlyTheBinding checks Rewrite on every fixture and hundreds of
// placements: the binding is written, everything else is unchanged, and
// rewriting the result changes nothing.
func TestRewriteChangesOnlyTheBinding(t *testing.T) {
	for name, xml := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := mustParse(t, xml)
			rapid.Check(t, func(rt *rapid.T) {
				p := drawPlacement(rt, d)
				intent := Metadata{Spec: guest.Spec{Name: d.Name, VCPUs: d.Config.VCPUs, Memory: d.BootMemory}}
				bound, err := Rewrite(xml, p, intent)
				if err != nil {
					rt.Fatalf("%v\nplacement %+v", err, p)
				}
				again, err := Rewrite(bound, p, intent)
				if err != nil {
					rt.Fatalf("second time: %v\n%s", err, bound)
				}
				if !bytes.Equal(bound, again) {
					rt.Fatalf("second time differs:\n%s", cmp.Diff(string(bound), string(again)))
				}
				if diff := cmp.Diff(foreign(rt, xml, xml, p), foreign(rt, bound, xml, p)); diff != "" {
					rt.Fatalf("changed a part outside the binding:\n%s\nwhole:\n%s", diff, bound)
				}
				checkBound(rt, bound, p, intent)
			})
		})
	}
}

// checkBound reads a rewritten XML back and compares it with the placement.
func checkBound(t *rapid.T, bound []byte, p guest.Placement, intent Metadata) {
	d, err := ParseDomain(bound)
	if err != nil {
		t.Fatalf("reading it back: %v\n%s", err, bound)
	}
	c := d.Config
	for _, v := range p.VCPUs {
		if !c.Pins[v.ID].Equal(v.CPUs) {
			t.Errorf("vCPU %d pinned to %q, not %q", v.ID, c.Pins[v.ID], v.CPUs)
		}
	}
	for _, id := range d.IOThreads {
		if !c.IOThreadPins[id].Equal(p.IOThread) {
			t.Errorf("I/O thread %d pinned to %q, not %q", id, c.IOThreadPins[id], p.IOThread)
		}
	}
	if !c.EmulatorPin.Equal(p.Emulator) && !c.EmulatorPin.IsEmpty() {
		t.Errorf("emulator pinned to %q, not %q", c.EmulatorPin, p.Emulator)
	}
	if c.EmulatorPin.IsEmpty() && !p.Emulator.IsEmpty() && !c.Immediate && c.PageSize == 0 {
		t.Errorf("emulator not pinned")
	}
	if c.AutoPlacement {
		t.Errorf("placement is still automatic")
	}
	if p.Visible && len(c.Cells) != len(p.Cells) {
		t.Errorf("%d cells, not %d", len(c.Cells), len(p.Cells))
	}
	if p.Immediate && !c.Immediate {
		t.Errorf("allocation is not immediate")
	}
	if d.Intent == nil || cmp.Diff(*d.Intent, Metadata{Spec: intent.Spec, Placement: p}) != "" {
		t.Errorf("intent reads back as %+v", d.Intent)
	}
	checkTune(t, d, p)
}

func checkTune(t *rapid.T, d Domain, p guest.Placement) {
	tune := d.Config.NUMATune
	if p.MemoryMode == guest.MemoryNone {
		if tune != nil {
			t.Errorf("numatune %+v with memory binding none", tune)
		}
		return
	}
	if tune == nil || !tune.Nodes.Equal(p.Nodes) {
		t.Fatalf("numatune %+v is not limited to nodes %q", tune, p.Nodes)
	}
	seesCells := len(d.Config.Cells) > 0
	switch {
	case p.MemoryMode == guest.MemoryRestrictive:
		if tune.Mode != "restrictive" || len(tune.Cells) > 0 {
			t.Errorf("restrictive: numatune is %+v", tune)
		}
	case seesCells:
		if tune.Mode != "strict" || len(tune.Cells) != len(d.Config.Cells) {
			t.Fatalf("numatune is %+v for %d cells", tune, len(d.Config.Cells))
		}
		for i, c := range tune.Cells {
			if c.Mode != string(p.MemoryMode) || !c.Nodes.Equal(p.Cells[i].Nodes) {
				t.Errorf("cell %d: %+v, wanted %s on %q", i, c, p.MemoryMode, p.Cells[i].Nodes)
			}
		}
	case len(tune.Cells) > 0:
		t.Errorf("memnodes without cells: %+v", tune)
	case p.MemoryMode == guest.MemoryInterleave && p.Nodes.Len() > 1:
		if tune.Mode != "interleave" {
			t.Errorf("hidden interleave: numatune is %+v", tune)
		}
	case tune.Mode != "strict": // anything else sets no outer limit
		t.Errorf("no outer limit: numatune is %+v", tune)
	}
}

// foreign returns a document without the parts that binding may change, as a
// separate DOM parser reads it: elements, attributes, text and comments in order.
func foreign(t *rapid.T, xml, original []byte, p guest.Placement) string {
	doc, old := etree.NewDocument(), etree.NewDocument()
	if err := errors.Join(doc.ReadFromBytes(xml), old.ReadFromBytes(original)); err != nil {
		t.Fatalf("not well-formed: %v\n%s", err, xml)
	}
	root := doc.Root()
	drop := func(path string) {
		for _, e := range root.FindElements(path) {
			e.Parent().RemoveChild(e)
		}
	}
	for _, path := range []string{"./cputune/vcpupin", "./cputune/emulatorpin", "./cputune/iothreadpin",
		"./numatune/memory", "./numatune/memnode"} {
		drop(path)
	}
	for _, e := range root.FindElements("./metadata/*") {
		if e.NamespaceURI() == MetadataURI {
			e.Parent().RemoveChild(e)
		}
	}
	if old.FindElement("/domain/memoryBacking/source") == nil {
		drop("./memoryBacking/source")
		if old.FindElement("/domain/memoryBacking/access") == nil {
			drop("./memoryBacking/access")
		}
	}
	if old.FindElement("/domain/memoryBacking/hugepages/page") == nil {
		drop("./memoryBacking/hugepages")
	}
	if old.FindElement("/domain/memoryBacking/allocation") == nil {
		drop("./memoryBacking/allocation")
	} else if e := root.FindElement("./memoryBacking/allocation"); e != nil && p.Immediate {
		e.RemoveAttr("mode")
	}
	if old.FindElement("/domain/cpu/numa") == nil {
		drop("./cpu/numa")
	} else if p.Visible {
		drop("./cpu/numa/cell/distances")
	}
	for _, e := range root.SelectElements("vcpu") {
		e.RemoveAttr("placement")
		e.RemoveAttr("cpuset")
	}
	if old.FindElement("/domain/vcpu") == nil {
		drop("./vcpu")
	}
	for _, name := range []string{"metadata", "cputune", "numatune", "memoryBacking", "cpu"} {
		if e := root.SelectElement(name); e != nil && len(e.ChildElements()) == 0 && len(e.Attr) == 0 &&
			len(comments(e)) == 0 {
			root.RemoveChild(e)
		}
	}
	var b strings.Builder
	dump(&b, root)
	return b.String()
}

func comments(e *etree.Element) []string {
	var found []string
	for _, c := range e.Child {
		if c, ok := c.(*etree.Comment); ok {
			found = append(found, c.Data)
		}
	}
	return found
}

func dump(b *strings.Builder, e *etree.Element) {
	fmt.Fprintf(b, "<%s", e.FullTag())
	for _, a := range e.Attr {
		fmt.Fprintf(b, " %s=%q", a.FullKey(), a.Value)
	}
	b.WriteString(">\n")
	for _, c := range e.Child {
		switch c := c.(type) {
		case *etree.Element:
			dump(b, c)
		case *etree.CharData:
			if strings.TrimSpace(c.Data) != "" {
				fmt.Fprintf(b, "%q\n", c.Data)
			}
		case *etree.Comment:
			fmt.Fprintf(b, "<!--%s-->\n", c.Data)
		}
	}
	b.WriteString("</>\n")
}

// small gives a placement of one cell on node 1 for a domain.
func small(d Domain) guest.Placement {
	p := guest.Placement{
		Guest: d.Name, Nodes: topology.SetOf[topology.NodeID](1), MemoryMode: guest.MemoryStrict,
		CPUMode:  guest.CPURange,
		PageSize: d.Config.PageSize, IOThreads: len(d.IOThreads), Movable: true,
		Cells: []guest.Cell{
			{VCPUs: allVCPUs(d.Config.VCPUs), Memory: d.BootMemory, Nodes: topology.SetOf[topology.NodeID](1)}},
	}
	for v := range d.Config.VCPUs {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: topology.MustParseSet[topology.CPUID]("4-7")})
	}
	return p
}

// TestRewriteByExample shows the complete output, for reading.
func TestRewriteByExample(t *testing.T) {
	const in = `<domain type='kvm'>
  <name>web1</name>
  <memory unit='MiB'>512</memory>
  <vcpu placement='auto' current='1'>2</vcpu>
  <numatune>
    <memory mode='strict' placement='auto'/>
  </numatune>
  <cpu mode='host-passthrough'/>
  <devices/> <!-- none -->
</domain>
`
	set := topology.MustParseSet[topology.CPUID]
	node := func(id topology.NodeID) topology.NodeSet { return topology.SetOf(id) }
	p := guest.Placement{
		Guest: "web1", Nodes: topology.SetOf[topology.NodeID](1, 5), Visible: true, CPUMode: guest.CPURange,
		MemoryMode: guest.MemoryPreferred, Movable: true, Emulator: set("2-5"),
		VCPUs: []guest.VCPU{{ID: 0, CPUs: set("2-3")}, {ID: 1, CPUs: set("4-5")}},
		Cells: []guest.Cell{
			{
				ID:        0,
				VCPUs:     topology.SetOf[guest.VCPUID](0),
				Memory:    256 * topology.MiB,
				Nodes:     node(1),
				Distances: []int{10, 28},
			},
			{
				ID:        1,
				VCPUs:     topology.SetOf[guest.VCPUID](1),
				Memory:    256 * topology.MiB,
				Nodes:     node(5),
				Distances: []int{28, 10},
			},
		},
	}
	got, err := Rewrite([]byte(in), p, Metadata{})
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	from := strings.Index(text, "  <metadata>")
	to := strings.Index(text, "</metadata>\n") + len("</metadata>\n")
	if from < 0 || to < from {
		t.Fatalf("no metadata:\n%s", text)
	}
	const want = `<domain type='kvm'>
  <name>web1</name>
  <memory unit='MiB'>512</memory>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <vcpu placement='static' current='1'>2</vcpu>
  <cputune>
    <vcpupin vcpu='0' cpuset='2-3'/>
    <vcpupin vcpu='1' cpuset='4-5'/>
    <emulatorpin cpuset='2-5'/>
  </cputune>
  <numatune>
    <memory mode='strict' nodeset='1,5'/>
    <memnode cellid='0' mode='preferred' nodeset='1'/>
    <memnode cellid='1' mode='preferred' nodeset='5'/>
  </numatune>
  <cpu mode='host-passthrough'>
    <numa>
      <cell id='0' cpus='0' memory='262144' unit='KiB'>
        <distances>
          <sibling id='0' value='10'/>
          <sibling id='1' value='28'/>
        </distances>
      </cell>
      <cell id='1' cpus='1' memory='262144' unit='KiB'>
        <distances>
          <sibling id='0' value='28'/>
          <sibling id='1' value='10'/>
        </distances>
      </cell>
    </numa>
  </cpu>
  <devices/> <!-- none -->
</domain>
`
	if diff := cmp.Diff(want, text[:from]+text[to:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRewriteRefuses lists what must not be bound, and what the error names.
func TestRewriteRefuses(t *testing.T) {
	all := fixtures(t)
	for _, c := range []struct {
		name, fixture string
		change        func(*guest.Placement)
		contradiction bool
		says          string
	}{
		{"other vCPUs", "virt-manager", func(p *guest.Placement) {
			p.VCPUs = p.VCPUs[:3]
			p.Cells[0].VCPUs = allVCPUs(3)
		}, true, "vCPUs: the domain XML says 4, the placement 3"},
		{"more memory", "virt-manager", func(p *guest.Placement) { p.Cells[0].Memory *= 2 }, true, "memory"},
		{"other guest", "virt-manager", func(p *guest.Placement) { p.Guest = "db" }, true, "name: the domain XML " +
			"says fedora-desktop, the placement db"},
		{"other I/O threads", "pxb", func(p *guest.Placement) { p.IOThreads = 1 }, true, "I/O threads"},
		{"devices on cells", "pxb", nil, true, "pcie-expander-bus"},
		{"vhost-user memory of cells", "nova", nil, true, "memAccess='shared' of cell 0"},
		{"hot memory on a cell", "ovirt", func(p *guest.Placement) {
			p.Cells = append(p.Cells, guest.Cell{ID: 1, Memory: topology.GiB, Nodes: p.Nodes})
			p.Cells[0].Memory -= topology.GiB
		}, true, "<memory model='dimm'> on cell 0"},
		{"nodemask of a memory device elsewhere", "file-backed", func(p *guest.Placement) {
			p.Nodes, p.Cells[0].Nodes = topology.SetOf[topology.NodeID](2), topology.SetOf[topology.NodeID](2)
		}, true, "nodemask"},
		{"small pages for huge ones", "hugepages", func(p *guest.Placement) { p.PageSize = 0 }, true, "page size"},
		{"other huge pages", "nova", func(p *guest.Placement) { p.PageSize = 2 * topology.MiB }, true, "page size"},
		{"locked memory unbound", "sev", func(p *guest.Placement) { p.MemoryMode = guest.MemoryNone }, true, "locked"},
		{"allocated at start unbound", "file-backed", func(p *guest.Placement) { p.MemoryMode = guest.MemoryNone },
			true, "allocated at start"},
		{"immediate unbound", "minimal", func(p *guest.Placement) {
			p.MemoryMode, p.Immediate = guest.MemoryNone,
				true
		}, false, "memory_binding=none"},
		{"unknown mode", "minimal", func(p *guest.Placement) { p.MemoryMode = "sticky" }, false,
			`memory_binding="sticky"; allowed`},
		{"no cells", "minimal", func(p *guest.Placement) { p.Cells = nil }, false, "cells: empty"},
		{"cell ids with a gap", "minimal", func(p *guest.Placement) { p.Cells[0].ID = 1 }, false, "cell id 1"},
		{"cell outside of the guest's nodes", "minimal",
			func(p *guest.Placement) { p.Cells[0].Nodes = p.Nodes.With(9) }, false, "must be some of"},
		{"cell on no node", "minimal", func(p *guest.Placement) { p.Cells[0].Nodes = topology.NodeSet{} }, false,
			"must be some of"},
		{"half a KiB", "minimal", func(p *guest.Placement) { p.Cells[0].Memory += 512 }, false, "KiB"},
		{"half a MiB", "minimal", func(p *guest.Placement) {
			half := topology.MiB / 2
			p.Cells[0].Memory -= half
			p.Cells = append(p.Cells, guest.Cell{ID: 1, Memory: half, Nodes: p.Nodes})
			p.Visible = true
		}, false, "whole number of MiB"},
		{"vCPU in no cell", "minimal", func(p *guest.Placement) { p.Cells[0].VCPUs = guest.VCPUSet{} }, false,
			"vCPU 0"},
		{"bad distance", "minimal", func(p *guest.Placement) { p.Cells[0].Distances = []int{20} }, false,
			"distance 20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			xml := all[c.fixture]
			p := small(mustParse(t, xml))
			if c.change != nil {
				c.change(&p)
			}
			out, err := Rewrite(xml, p, Metadata{})
			if err == nil {
				t.Fatalf("accepted:\n%s", out)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("says %q, not %q", err, c.says)
			}
			var contradiction *ContradictionError
			if errors.As(err, &contradiction) != c.contradiction {
				t.Errorf("%v: is a contradiction: %v", err, !c.contradiction)
			}
		})
	}
}

func TestRewrite_RefusesRepeatedElements(t *testing.T) {
	xml := []byte(
		`<domain><name>a</name><memory>1024</memory><cputune/><cputune><vcpupin vcpu='0' cpuset='3'/></cputune></domain>`,
	)
	if _, err := Rewrite(xml, small(mustParse(t, xml)), Metadata{}); err == nil ||
		!strings.Contains(err.Error(), "<cputune> occurs 2 times") {
		t.Errorf("error is %v", err)
	}
}

func TestRewrite_PreservesCellsThatSetTheMemory(t *testing.T) {
	xml := []byte(
		`<domain><memory>5</memory><cpu><numa><cell memory='1024'/><cell memory='2048'/></numa></cpu></domain>`,
	)
	var contradiction *ContradictionError
	if _, err := Rewrite(xml, small(mustParse(t, xml)), Metadata{}); !errors.As(err, &contradiction) ||
		contradiction.Field != "memory" {
		t.Errorf("error is %v", err)
	}
}

// TestRewriteSources: memfd if memory should be movable and nothing prevents
// it.
func TestRewriteSources(t *testing.T) {
	for fixture, want := range map[string]string{
		"minimal": "memfd shared", "virt-manager": "memfd shared", "file-backed": "file shared",
		"sev":         "anonymous private",
		"commandline": "anonymous private", // vfio
	} {
		xml := fixtures(t)[fixture]
		p := small(mustParse(t, xml))
		bound, err := Rewrite(xml, p, Metadata{})
		if err != nil {
			t.Fatal(err)
		}
		d := mustParse(t, bound)
		got := d.Config.Source + " private"
		if d.Config.Shared {
			got = d.Config.Source + " shared"
		}
		if got != want {
			t.Errorf("%s: memory is %s, not %s", fixture, got, want)
		}
		movable := !slices.ContainsFunc(Cannot(d, p),
			func(r plan.Refusal) bool { return r.What == "memory that can be moved" })
		if movable != (want == "memfd shared") {
			t.Errorf("%s: Cannot says movable=%v: %+v", fixture, movable, Cannot(d, p))
		}
	}
}

// TestLateEmulatorPin: QEMU does not start if allocating threads cannot run on
// a cell's nodes, so the pin is left out unless it certainly reaches all of them.
func TestLateEmulatorPin(t *testing.T) {
	xml := fixtures(t)["minimal"]
	set := topology.MustParseSet[topology.CPUID]
	for _, c := range []struct {
		name      string
		immediate bool
		emulator  string
		mode      guest.MemoryMode
		late      bool
	}{
		{"reaches the cell", true, "0-4", guest.MemoryStrict, false},
		{"elsewhere, on demand", false, "0-1", guest.MemoryStrict, false},
		{"elsewhere, immediate", true, "0-1", guest.MemoryStrict, true},
		{"restrictive has no allocating threads per node", true, "0-1", guest.MemoryRestrictive, false},
	} {
		p := small(mustParse(t, xml))
		p.Immediate, p.Emulator, p.MemoryMode = c.immediate, set(c.emulator), c.mode
		bound, err := Rewrite(xml, p, Metadata{})
		if err != nil {
			t.Fatal(err)
		}
		if got := EmulatorPinIsLate(p); got != c.late {
			t.Errorf("%s: late is %v", c.name, got)
		}
		if got := mustParse(t, bound).Config.EmulatorPin.IsEmpty(); got != c.late {
			t.Errorf("%s: pin left out is %v", c.name, got)
		}
	}
}

func TestRewriteShowsOneCellWhereAPolicyNeedsIt(t *testing.T) {
	xml := fixtures(t)["minimal"]
	p := small(mustParse(t, xml))
	p.MemoryMode, p.Nodes = guest.MemoryPreferred, topology.SetOf[topology.NodeID](1, 2)
	bound, err := Rewrite(xml, p, Metadata{})
	if err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, bound).Config
	if len(c.Cells) != 1 || len(c.NUMATune.Cells) != 1 || c.NUMATune.Cells[0].Nodes.String() != "1" ||
		c.NUMATune.Nodes.String() != "1-2" {
		t.Errorf("cells %+v, numatune %+v", c.Cells, c.NUMATune)
	}
}
