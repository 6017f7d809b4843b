package guest_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

func TestParseSpecReadsEveryField(t *testing.T) {
	no := false
	want := guest.Spec{
		Name: "db1", VCPUs: 16, Memory: 64 * gib, PageSize: gib,
		CPU: guest.CPUSpec{Binding: guest.CPUExclusive, SMT: guest.SMTIsolate, Emulator: guest.HelperHousekeeping,
			IOThreads: 2, IOPolicy: guest.HelperExclusive},
		Binding: guest.MemorySpec{Mode: guest.MemoryStrict, Immediate: true},
		Topology: guest.TopologySpec{
			Mode:  guest.TopologyCells,
			Count: 2,
			Cells: []guest.CellSpec{{VCPUs: 8, Memory: 32 * gib}, {VCPUs: 8, Memory: 32 * gib}},
		},
		Limits: guest.Limits{
			MaxDistance: 21,
			MaxClass:    topology.Neighbour,
			Nodes:       nodes("0-1,4"),
			CPUs:        cpus("0-31"),
			MaxNodes:    2,
		},
		Devices: []guest.DeviceSpec{{Address: "0000:3b:00.0", Required: true, Passthrough: true},
			{Address: "0000:00:10.0"}},
		Movable: &no,
	}
	for _, file := range []string{"everything.yaml", "everything.json"} {
		f, err := os.Open(filepath.Join("..", "..", "testdata", "specs", file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := guest.ParseSpec(f)
		f.Close()
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if diff := cmp.Diff(want, got.Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestParseSpecReadsWhatPeopleWrite(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       guest.Spec
	}{
		{"least", "vcpus: 8\nmemory: 16G\n", guest.Spec{VCPUs: 8, Memory: 16 * gib}},
		{"bytes", "vcpus: 1\nmemory: 1073741824B\n", guest.Spec{VCPUs: 1, Memory: gib}},
		{"bytes beyond the exact range of floats", "memory: 9007199254740993B\n", guest.Spec{Memory: 9007199254740993}},
		{"a document mark and a comment before it", "# mine\n---\nvcpus: 1\n", guest.Spec{VCPUs: 1}},
		{"bare off, which YAML 1.1 reads as false", "topology:\n  mode: off\n",
			guest.Spec{Topology: guest.TopologySpec{Mode: guest.TopologyOff}}},
		{"a node as a bare number", "limits:\n  nodes: 3\n", guest.Spec{Limits: guest.Limits{Nodes: nodes("3")}}},
		{"a field with nothing behind it", "vcpus: 2\ndevices:\nlimits:\n", guest.Spec{VCPUs: 2}},
		{"JSON", `{"vcpus": 2, "memory": "1.5GiB"}`, guest.Spec{VCPUs: 2, Memory: 3 * gib / 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := guest.ParseSpec(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.Spec); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseSpecNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // all in the error
	}{
		{"a slip of the pen", "vcpu: 8", []string{"spec:1:1: vcpu: no such field; did you mean vcpus?"}},
		{"another spelling", "pageSize: 2M", []string{"pageSize: no such field; did you mean page_size?"}},
		{"the right name in the wrong place", "max_distance: 20", []string{"did you mean limits.max_distance?"}},
		{"inside", "cpu:\n  bindings: range", []string{"spec:2:3: cpu.bindings: ", "did you mean cpu.binding?"}},
		{"in a list", "topology:\n  cells:\n  - {vcpus: 1, mem: 1G}", []string{"spec:3:16: topology.cells[0].mem: ",
			"vcpus, memory"}},
		{"nothing near", "colour: red", []string{"colour: no such field; allowed: name, vcpus"}},
		{"all of them", "vcpu: 8\nmemory: lots\ncpu: 4\nmemory_binding: {mode: sideways}",
			[]string{"spec:1:1: vcpu: ", "\nspec:2:9: memory is \"lots\": ",
				"\nspec:3:6: cpu is 4; allowed: the fields binding, ", "\nspec:4:24: memory_binding.mode is " +
					"\"sideways\"; allowed: none, preferred, "}},
		{"half a vCPU", "vcpus: 1.5", []string{"vcpus is 1.5; allowed: a whole number"}},
		{"a number for text", "name: 17", []string{"name is 17; allowed: text; put it in quotes"}},
		{"negative memory", "memory: -1", []string{"memory is -1: size"}},
		{"unknown unit", "memory: 16Q", []string{"memory is \"16Q\": size"}},
		{"a set that is none", "limits:\n  nodes: 3-1", []string{"spec:2:10: limits.nodes is \"3-1\": ", "backwards"}},
		{"an unknown class", "limits: {max_class: far}",
			[]string{"limits.max_class is \"far\"; allowed: local, neighbour, remote"}},
		{"one for many", "devices: 0000:3b:00.0", []string{"devices is \"0000:3b:00.0\"; allowed: a list"}},
		{"two documents", "vcpus: 1\n---\nvcpus: 2", []string{"spec:2:1: a second YAML document"}},
		{"empty", "", []string{"spec: is empty; at least vcpus and memory are needed"}},
		{"large", strings.Repeat("#", 1<<20+1), []string{"spec: larger than 1 MiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := guest.ParseSpec(strings.NewReader(c.text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

// An error of Normalize is about the file if the file alone has it.
func TestSpecFile_Locate(t *testing.T) {
	f, err := guest.ParseSpec(strings.NewReader("vcpus: 2\nmemory: 1G\nlimits:\n  max_distance: 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Spec.Normalize()
	want := "spec:4:17: limits.max_distance is 5; allowed: "
	if got := f.Locate(err); got == nil || !strings.HasPrefix(got.Error(), want) {
		t.Errorf("got %v, want %q", got, want)
	}
	changed := f.Spec
	changed.VCPUs = -1
	_, err = changed.Normalize()
	if got := f.Locate(err); got == nil || got.Error() != err.Error() {
		t.Errorf("got %v, want %v as it was", got, err)
	}
	if got := f.Locate(nil); got != nil {
		t.Errorf("got %v out of no error", got)
	}
}

func TestParseSpecReportsAFailingReader(t *testing.T) {
	broken := errors.New("pipe broke")
	if _, err := guest.ParseSpec(failing{broken}); !errors.Is(err, broken) {
		t.Errorf("error %v does not wrap %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A spec is unchanged after it is written and read again: hypervisors store it
// in that form with the guest.
func TestSpecSurvivesWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawSpec(t)
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got guest.Spec
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", text, diff)
		}
	})
}

func FuzzParseSpec(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "testdata", "specs", "*"))
	if len(files) == 0 {
		f.Fatal("no seeds")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("a: &a [*a]")
	f.Add("vcpus: .inf\nmemory: 1e400")
	f.Add("? {a: b}\n: c")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := guest.ParseSpec(strings.NewReader(text))
		if err != nil {
			return
		}
		n, err := s.Spec.Normalize()
		if err != nil {
			return
		}
		again, err := n.Normalize()
		if err != nil {
			t.Fatalf("a normal spec is refused: %v", err)
		}
		if diff := cmp.Diff(n, again); diff != "" {
			t.Fatalf("normalizing twice differs (-once +twice):\n%s", diff)
		}
	})
}
