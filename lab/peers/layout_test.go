package peers

import (
	"encoding/xml"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/topology"
)

// threeOn4 are three VMs of two vCPUs on nodes of four CPUs.
func threeOn4() Layout {
	return Layout{Name: "test", NodeCPUs: 4,
		VMs: times(3, VM{VCPUs: 2, Memory: 448 * topology.MiB, Start: []int{0}})}.completed()
}

func TestLayouts_CanRun(t *testing.T) {
	all := Layouts()
	if len(all) < 8 {
		t.Errorf("%d layouts", len(all))
	}
	for i, l := range all {
		if err := l.Validate(); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
		if l.About == "" || l.Seconds <= l.lastChange() {
			t.Errorf("%s: about %q, %d s, the last change is after %d s", l.Name, l.About, l.Seconds, l.lastChange())
		}
		shape, err := l.shape()
		if err != nil || shape.CPUs() != l.Nodes*l.NodeCPUs || !shape.HasKVM() {
			t.Errorf("%s: shape %+v: %v", l.Name, shape, err)
		}
		if shape.Memory() > 16*topology.GiB {
			t.Errorf("%s needs %v of memory", l.Name, shape.Memory())
		}
		for _, other := range all[:i] {
			if other.Name == l.Name || other.sameAs(l) {
				t.Errorf("%s is %s", l.Name, other.Name)
			}
		}
	}
}

// What the table must have, at least.
func TestLayouts_CoverTheDimensions(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range Layouts() {
		seen["eight nodes"] = seen["eight nodes"] || l.Nodes == nodesOfEight
		for _, v := range l.VMs {
			seen["smeared"] = seen["smeared"] || len(v.Start) > 1
			seen["idle"] = seen["idle"] || !v.busy()
			seen["late"] = seen["late"] || slices.Contains(v.Phases, Phase{At: changeAt, To: wholePercent})
			seen["goes idle"] = seen["goes idle"] || v.busy() && slices.Contains(v.Phases, Phase{At: changeAt})
			seen["three vCPUs"] = seen["three vCPUs"] || v.VCPUs == 3
		}
	}
	if len(seen) != 6 || slices.Contains([]bool{seen["eight nodes"], seen["smeared"], seen["idle"],
		seen["late"], seen["goes idle"], seen["three vCPUs"]}, false) {
		t.Errorf("some of the dimensions have no layout: %v", seen)
	}
}

func TestValidateRefusesWhatCannotRun(t *testing.T) {
	for want, change := range map[string]func(*Layout){
		"VMs: 0":                func(l *Layout) { l.VMs = nil },
		"VMs: 9":                func(l *Layout) { l.VMs = times(9, l.VMs[0]) },
		"nodes: 5":              func(l *Layout) { l.Nodes = 5 },
		"CPUs of a node: 0":     func(l *Layout) { l.NodeCPUs = 0 },
		"a node has 4 CPUs":     func(l *Layout) { l.VMs[1].VCPUs = 5 },
		"vCPUs: 0":              func(l *Layout) { l.VMs[2].VCPUs = 0 },
		"do not fit on 4 nodes": func(l *Layout) { l.NodeCPUs, l.NodeRoom, l.VMs = 3, 4*topology.GiB, times(5, l.VMs[0]) },
		"whole MiB":             func(l *Layout) { l.VMs[0].Memory += topology.KiB },
		"delay scale: 0":        func(l *Layout) { l.DelayScale = 0 },
		"start: no node":        func(l *Layout) { l.VMs[0].Start = nil },
		"start: node 4":         func(l *Layout) { l.VMs[0].Start = []int{4} },
		"start: node 1":         func(l *Layout) { l.VMs[0].Start = []int{1, 1} },
		"and 400 MiB of memory": func(l *Layout) {
			l.NodeRoom, l.VMs = 400*topology.MiB,
				times(1, VM{VCPUs: 1, Memory: 448 * topology.MiB, Start: []int{0, 1}})
		},
		"the times must ascend":       func(l *Layout) { l.VMs[0].Phases = []Phase{{At: 20}, {At: 20, To: 1}} },
		"allowed are 0 to 100":        func(l *Layout) { l.VMs[0].Phases = []Phase{{To: 101}} },
		"phase at 75 s":               func(l *Layout) { l.VMs[0].Phases = []Phase{{At: 75}} },
		"created after 30 s: it work": func(l *Layout) { l.VMs[0].Created = 30 },
		"such a VM has no phases": func(l *Layout) {
			l.Seconds, l.VMs[0].Created, l.VMs[0].Phases = 170, 5, []Phase{{At: 9}}
		},
		"seconds: 4": func(l *Layout) { l.Seconds = 4 },
	} {
		l := threeOn4()
		change(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if err := threeOn4().Validate(); err != nil {
		t.Error(err)
	}
}

// tuning is what a domain says of CPUs and memory.
type tuning struct {
	Name string `xml:"name"`
	VCPU struct {
		Placement string `xml:"placement,attr"`
	} `xml:"vcpu"`
	Pins []struct {
		CPUs string `xml:"cpuset,attr"`
	} `xml:"cputune>vcpupin"`
	Emulator struct {
		CPUs string `xml:"cpuset,attr"`
	} `xml:"cputune>emulatorpin"`
	Memory struct {
		Mode    string `xml:"mode,attr"`
		Nodeset string `xml:"nodeset,attr"`
	} `xml:"numatune>memory"`
}

func tuningOf(t *testing.T, m string, l Layout, vm int) tuning {
	t.Helper()
	manager, err := FindManager(m)
	if err != nil {
		t.Fatal(err)
	}
	var d tuning
	if err := xml.Unmarshal([]byte(manager.domain(l, vm)), &d); err != nil || d.Name != nameOf(vm) {
		t.Fatalf("%s, VM %d: %q: %v", m, vm, d.Name, err)
	}
	return d
}

// nodesOf are the nodes of a set of CPUs.
func nodesOf(t *testing.T, l Layout, cpus string) (nodes []int) {
	t.Helper()
	set, err := topology.ParseSet[topology.CPUID](cpus)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range set.IDs() {
		if node := int(id) / l.NodeCPUs; !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// In the baseline of every layout no two working vCPUs share a CPU, each VM's
// CPUs and memory are on one node, and no node holds more memory than it has.
func TestBaseline_IsLegalInEveryLayout(t *testing.T) {
	for _, l := range Layouts() {
		checkBaseline(t, l)
	}
}

func checkBaseline(t *testing.T, l Layout) {
	t.Helper()
	taken, memory := map[string]bool{}, make([]topology.Bytes, l.Nodes)
	for vm, v := range l.VMs {
		d := tuningOf(t, Baseline, l, vm)
		if d.Memory.Mode != "strict" || len(d.Pins) != v.VCPUs {
			t.Errorf("%s, VM %d: memory %s, %d pins", l.Name, vm, d.Memory.Mode, len(d.Pins))
		}
		home := nodesOf(t, l, d.Emulator.CPUs)
		if list(home) != d.Memory.Nodeset {
			t.Errorf("%s, VM %d: memory on %s, emulator on nodes %v", l.Name, vm, d.Memory.Nodeset, home)
		}
		for _, pin := range d.Pins {
			if on := nodesOf(t, l, pin.CPUs); !slices.Equal(on, home) || v.busy() && (len(on) != 1 || taken[pin.CPUs]) {
				t.Errorf("%s, VM %d: a vCPU on CPUs %s, nodes %v; home %v", l.Name, vm, pin.CPUs, on, home)
			}
			taken[pin.CPUs] = taken[pin.CPUs] || v.busy()
		}
		for _, n := range home {
			memory[n] += v.Memory / topology.Bytes(len(home))
		}
	}
	for n, bytes := range memory {
		if bytes > l.rooms()[n] {
			t.Errorf("%s: %v on node %d", l.Name, bytes, n)
		}
	}
}

// Layouts that are in no list have a legal baseline too, or are refused.
func TestBaseline_IsLegalInRandomLayouts(t *testing.T) {
	measured := 0
	rapid.Check(t, func(r *rapid.T) {
		d := DefaultDimensions()
		d.Nodes = rapid.SampledFrom([]int{4, 8}).Draw(r, "nodes")
		d.NodeCPUs = rapid.IntRange(1, 4).Draw(r, "CPUs")
		d.Guests = rapid.IntRange(1, 6).Draw(r, "VMs")
		d.VCPUs = rapid.SliceOfN(rapid.IntRange(1, 3), d.Guests, d.Guests).Draw(r, "vCPUs")
		d.Start = rapid.SampledFrom(Starts()).Draw(r, "start")
		d.Change = rapid.SampledFrom(Changes()).Draw(r, "change")
		d.Late = rapid.IntRange(0, d.Guests-1).Draw(r, "late")
		d.Idle = rapid.IntRange(0, 2).Draw(r, "idle")
		l, err := d.Layout()
		if err != nil {
			r.Fatal(err)
		}
		if l.Validate() != nil {
			return
		}
		measured++
		checkBaseline(t, l)
		nominal := l.nominal()
		mib, ok := l.cheapest(nominal)
		byHand := uint64(0)
		homes, _ := l.homes()
		for vm, byNode := range nominal {
			for n, part := range byNode {
				if homes[vm] != stays && n != homes[vm] {
					byHand += part
				}
			}
		}
		if !ok || mib > byHand {
			r.Fatalf("%v: the cheapest plan copies %d MiB, %v; to the baseline's nodes it would be %d", l, mib, ok, byHand)
		}
	})
	if measured == 0 {
		t.Error("no layout could run")
	}
}

// The nodes are known by hand.
func TestBaseline_AvoidsNode0AndSpreads(t *testing.T) {
	for name, want := range map[string][]int{
		"default":         {1, 2, 3},
		"tight":           {1, 1, 2, 3},
		"mixed":           {1, 2, 3},
		"idle-neighbours": {0, 3, 3, stays, stays}, // the idle VMs leave no room for others; node 0 only for the third
		"eight-smeared":   {1, 2, 3, 4, 5, 6},
	} {
		l, err := FindLayouts([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		if homes, ok := l[0].homes(); !ok || !slices.Equal(homes, want) {
			t.Errorf("%s: %v, want %v", name, homes, want)
		}
	}
}

// At a worst-case start no working vCPU is on the node that has all memory of
// its VM, where that is possible, and no two share a CPU.
func TestWorstStart_IsFarInEveryLayout(t *testing.T) {
	for _, l := range Layouts() {
		taken := map[string]bool{}
		for vm, v := range l.VMs {
			d := tuningOf(t, None, l, vm)
			if v.Created > 0 {
				if d.Memory.Mode != "" || d.Pins != nil {
					t.Errorf("%s, VM %d is created in the midst, and limited to %s, %v", l.Name, vm, d.Memory.Nodeset, d.Pins)
				}
				continue
			}
			if d.Memory.Mode != "restrictive" || d.Memory.Nodeset != list(v.Start) {
				t.Errorf("%s, VM %d: memory %s on %s", l.Name, vm, d.Memory.Mode, d.Memory.Nodeset)
			}
			for _, pin := range d.Pins {
				if !v.busy() {
					continue
				}
				if taken[pin.CPUs] || slices.Equal(nodesOf(t, l, pin.CPUs), v.Start) {
					t.Errorf("%s, VM %d: a vCPU on CPU %s; its memory is on %v", l.Name, vm, pin.CPUs, v.Start)
				}
				taken[pin.CPUs] = true
			}
			if scatter := l.scatter(vm); (scatter != "") != (len(v.Start) > 1) {
				t.Errorf("%s, VM %d on %v: %q", l.Name, vm, v.Start, scatter)
			}
		}
	}
}

// Every manager's VM is valid XML, and only VMs with a worst-case start are
// limited to the nodes of the start.
func TestDomains(t *testing.T) {
	for _, m := range Managers() {
		d := tuningOf(t, m.Name, threeOn4(), 2)
		if bad := d.Memory.Mode == "restrictive" && d.Memory.Nodeset == "0"; bad != m.worstStart {
			t.Errorf("%s: worst-case start: %v, wanted %v", m.Name, bad, m.worstStart)
		}
		if auto := d.VCPU.Placement == "auto"; auto != (m.Name == Auto || m.Name == AutoMass) {
			t.Errorf("%s: vcpu placement %q", m.Name, d.VCPU.Placement)
		}
	}
	if _, err := FindManager("unknown"); err == nil || !strings.Contains(err.Error(), Numad) {
		t.Errorf("an unknown manager: %v; the error should list the known ones", err)
	}
}

func TestFindLayouts(t *testing.T) {
	all, err := FindLayouts([]string{"tight", AllLayouts, "tight"})
	if err != nil || len(all) != len(Layouts()) || all[0].Name != "tight" {
		t.Errorf("%d layouts, the first is %s: %v", len(all), all[0].Name, err)
	}
	if _, err := FindLayouts([]string{"smaered"}); err == nil || !strings.Contains(err.Error(), `mean "smeared"`) {
		t.Errorf("a mistyped name: %v", err)
	}
}

func TestDimensions(t *testing.T) {
	d := DefaultDimensions()
	if l, err := d.Layout(); err != nil || l.Name != DefaultLayout {
		t.Errorf("the default: %v, %v", l.Name, err)
	}
	d.Guests, d.NodeCPUs = 4, 2
	if l, err := d.Layout(); err != nil || l.Name != "tight" {
		t.Errorf("four VMs, two CPUs: %v, %v", l.Name, err)
	}
	d.VCPUs, d.Start, d.Idle, d.Change, d.Late = []int{1, 2, 1, 1}, StartSpread, 1, ChangeBusy, 1
	l, err := d.Layout()
	if err != nil || l.Validate() != nil || l.Name != "4x1,2,1,1v-352M-4x2c-spread-1idle1024M-busy60-1late" {
		t.Errorf("%s: %v, %v", l.Name, err, l.Validate())
	}
	got := l.String()
	want := "4 nodes of 2 CPUs and 2.4 GiB; VMs: 1 x 1 vCPU, 352 MiB on 0,1,2,3, 1 x 2 vCPUs, 352 MiB on 0,1,2,3, " +
		"1 x 1 vCPU, 352 MiB on 0,1,2,3, idle, from 60 s on works on 0 to 100 %, " +
		"1 x 1 vCPU, 352 MiB, created after 15 s, 1 x 2 vCPUs, 1 GiB on 3, idle; 225 s"
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	for want, change := range map[string]func(*Dimensions){
		"--host-nodes 5":  func(d *Dimensions) { d.Nodes = 5 },
		"--guests 9":      func(d *Dimensions) { d.Guests = 9 },
		"--vcpus: 2":      func(d *Dimensions) { d.VCPUs = []int{1, 2} },
		"--memory: 0":     func(d *Dimensions) { d.Memory = nil },
		"--start \"x\"":   func(d *Dimensions) { d.Start = "x" },
		"--change \"x\"":  func(d *Dimensions) { d.Change = "x" },
		"--idle-guests 4": func(d *Dimensions) { d.Idle = 4 },
		"--late-guests 3": func(d *Dimensions) { d.Late = 3 },
	} {
		d := DefaultDimensions()
		change(&d)
		if _, err := d.Layout(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
