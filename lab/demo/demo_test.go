package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

func TestAccessOf_WeighsMissesByDistance(t *testing.T) {
	s := lab.Shape{
		Nodes:        []lab.Node{{CPUs: 1, Memory: topology.GiB}, {CPUs: 2, Memory: topology.GiB}},
		LatencyNanos: [][]float64{{100, 200}, {300, 100}},
	}
	m := labcounter.Misses{Nodes: []topology.NodeID{0, 1}, CPUs: [][]uint64{{10, 30}, {20, 40}, {0, 0}}}
	got := accessOf(&s, &m)
	// CPU 0 is on node 0, CPU 1 on node 1: 10 and 40 of 100 are local.
	want := Access{Local: 0.5, Nanos: (10*100 + 30*200 + 20*300 + 40*100) / 100., Count: 100}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access (-want +got):\n%s", diff)
	}
	if got := accessOf(&s, &labcounter.Misses{}); got != (Access{}) {
		t.Errorf("nothing counted: got %+v", got)
	}
}

func TestSteps_EstimateWhatIsLeft(t *testing.T) {
	var out bytes.Buffer
	s := newSteps(&out)
	at := s.begun
	s.now = func() time.Time { return at }
	s.next("a")
	at = at.Add(2 * expected[0]) // this machine takes twice as long
	s.next("b")
	var rest time.Duration
	for _, d := range expected[1:] {
		rest += 2 * d
	}
	want := "== [2/6] " + clock(2*expected[0]) + ", about " + clock(rest) + " left: b"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got %q, want %q in it", out.String(), want)
	}
}

// scene is four VMs before and after; bound ones are local.
func scene() (before, after map[string]*figures) {
	before, after = map[string]*figures{}, map[string]*figures{}
	one := 1.0
	for _, name := range names() {
		before[name] = &figures{rates: []float64{100, 110}, access: []Access{{Local: 0, Nanos: 240, Count: 1000}}}
		after[name] = &figures{rates: []float64{200, 210}, access: []Access{{Local: 1, Nanos: 85, Count: 1000}},
			truth: truth{Guest: name, MemoryOnIntended: &one, VCPUsOnIntended: &one}}
	}
	before[control].access, before[control].rates = after[control].access, after[control].rates
	return before, after
}

func TestConclude_SaysWhenBandwidthDoesNotCompare(t *testing.T) {
	for name, c := range map[string]struct {
		busy    float64
		control []float64
		want    string
	}{
		"idle":           {0, []float64{200, 205}, ""},
		"busy":           {0.6, []float64{200, 205}, "This machine is busy: other programs use 60 % of it"},
		"unsteady":       {0, []float64{100, 205}, "varies by 110 %: do not compare"},
		"idle, 1.2 wide": {0.1, []float64{180, 205}, ""},
	} {
		before, after := scene()
		before[control].rates = c.control
		var out bytes.Buffer
		if err := conclude(&out, before, after, c.busy); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		warned := strings.Contains(out.String(), "busy:") || strings.Contains(out.String(), "varies")
		if !strings.Contains(out.String(), c.want) || warned != (c.want != "") {
			t.Errorf("%s: got\n%s", name, out.String())
		}
		if !strings.Contains(out.String(), "db1") || !strings.Contains(out.String(), "240 ns") {
			t.Errorf("%s: the counter's figures are missing:\n%s", name, out.String())
		}
	}
}

func TestConclude_FailsIfAVMIsNotWhereItWasBoundTo(t *testing.T) {
	most, half := 0.97, 0.5
	for name, spoil := range map[string]func(f *figures){
		"memory":    func(f *figures) { f.MemoryOnIntended = &most },
		"vCPUs":     func(f *figures) { f.VCPUsOnIntended = &half },
		"unmanaged": func(f *figures) { f.MemoryOnIntended = nil },
		"accesses":  func(f *figures) { f.access[0].Local = 0.7 },
	} {
		before, after := scene()
		spoil(after["db1"])
		if err := conclude(&bytes.Buffer{}, before, after, 0); err == nil || !strings.Contains(err.Error(), "db1") {
			t.Errorf("%s: got %v, want an error that names db1", name, err)
		}
	}
}

// Work of the host in one of two rounds does not fail the demo.
func TestConclude_ARoundOnABusyMachine(t *testing.T) {
	before, after := scene()
	after["db1"].access = append(after["db1"].access, Access{Local: 0.5, Nanos: 120, Count: 1000})
	if err := conclude(&bytes.Buffer{}, before, after, 0.2); err != nil {
		t.Error(err)
	}
}

// Every line that a story calls wrong is a line that the VM really has.
func TestMisplaced_WrongLinesAreInTheXMLOrTheCommand(t *testing.T) {
	for _, v := range misplaced() {
		have := strings.ReplaceAll(v.tuning+v.after, "-q ", "")
		for _, line := range v.wrong {
			if !strings.Contains(have, line) {
				t.Errorf("%s: %q is not what the demo does", v.name, line)
			}
		}
	}
}
