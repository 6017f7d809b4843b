package check

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

// newHost returns a host of four nodes. Nodes 0 and 1 have 8 CPUs on 4 cores,
// 16 GiB and two free 1 GiB pages each; node 2 has memory only, node 3 has CPUs
// 16 and 17 only. CPU 0 is for housekeeping. Guest old holds 4 GiB and CPUs 6-7
// of node 0.
func newHost() *inventory.Host {
	h := &inventory.Host{Name: "two"}
	t := &h.Topology
	for i := range 2 {
		first := topology.CPUID(8 * i)
		n := topology.Node{
			ID: topology.NodeID(i), Memory: 16 * gib, Free: 16 * gib, CPUs: topology.Range(first, first+7),
			HugePages: []topology.HugePagePool{{Size: gib, Total: 2, Free: 2}},
			Distances: map[topology.NodeID]int{0: 21, 1: 21, 2: 30},
		}
		n.Distances[n.ID] = 10
		for c := range n.CPUs.All() {
			core := c &^ 1
			t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: n.ID, Siblings: topology.SetOf(core, core+1)})
		}
		t.Nodes = append(t.Nodes, n)
	}
	t.Nodes = append(t.Nodes,
		topology.Node{ID: 2, Memory: 16 * gib, Free: 16 * gib, Distances: map[topology.NodeID]int{2: 10}},
		topology.Node{ID: 3, CPUs: cpus("16-17"), Distances: map[topology.NodeID]int{0: 15, 1: 15, 2: 30, 3: 10}})
	for c := range cpus("16-17").All() {
		t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: 3, Siblings: cpus("16-17")})
	}
	t.Housekeeping = topology.SetOf[topology.CPUID](0)
	t.Devices = []topology.Device{{Address: "0000:01:00.0", Node: 1}}
	t.Classify()
	h.Guests = []inventory.Guest{{Name: "old", Managed: true, Placement: &guest.Placement{
		Guest: "old", CPUMode: guest.CPUExclusive,
		Reservations: []guest.Reservation{{Node: 0, Memory: 4 * gib, VCPUs: 2, Exclusive: cpus("6-7")}},
	}}}
	return h
}

func cpus(s string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](s) }
func nodes(s string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](s) }
func vcpus(s string) guest.VCPUSet    { return topology.MustParseSet[guest.VCPUID](s) }

// shared is a guest of two cells on nodes 0 and 1.
func shared() (guest.Spec, guest.Placement) {
	spec := guest.Spec{Name: "new", VCPUs: 4, Memory: 8 * gib, CPU: guest.CPUSpec{IOThreads: 1}}
	p := guest.Placement{
		Guest: "new", Nodes: nodes("0-1"), Visible: true,
		CPUMode: guest.CPURange, MemoryMode: guest.MemoryPreferred, Movable: true,
		Cells: []guest.Cell{
			{ID: 0, VCPUs: vcpus("0-1"), Memory: 4 * gib, Nodes: nodes("0"), Distances: []int{10, 21}},
			{ID: 1, VCPUs: vcpus("2-3"), Memory: 4 * gib, Nodes: nodes("1"), Distances: []int{21, 10}},
		},
		Emulator: cpus("1-5,8-15"), IOThread: cpus("8-15"), IOThreads: 1,
		Reservations: []guest.Reservation{{Node: 0, Memory: 4 * gib, VCPUs: 2}, {Node: 1, Memory: 4 * gib, VCPUs: 2}},
	}
	for i, set := range []string{"1-5", "1-5", "8-15", "8-15"} {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: cpus(set)})
	}
	return spec, p
}

// alone is a guest with CPUs of its own on node 1.
func alone() (guest.Spec, guest.Placement) {
	spec := guest.Spec{Name: "new", VCPUs: 2, Memory: 2 * gib, PageSize: gib, CPU: guest.CPUSpec{
		Binding: guest.CPUExclusive, SMT: guest.SMTIsolate, Emulator: guest.HelperExclusive,
	}}
	p := guest.Placement{
		Guest: "new", Nodes: nodes("1"), CPUMode: guest.CPUExclusive, PageSize: gib,
		Cells:        []guest.Cell{{VCPUs: vcpus("0-1"), Memory: 2 * gib, Nodes: nodes("1")}},
		VCPUs:        []guest.VCPU{{ID: 0, CPUs: cpus("8")}, {ID: 1, CPUs: cpus("10")}},
		Emulator:     cpus("12"),
		Reservations: []guest.Reservation{{Node: 1, Memory: 2 * gib, PageSize: gib, VCPUs: 2, Exclusive: cpus("8-12")}},
	}
	return spec, p
}

// paired is a guest of four exclusive vCPUs that fill two cores of node 1.
func paired() (guest.Spec, guest.Placement) {
	spec := guest.Spec{Name: "new", VCPUs: 4, Memory: 2 * gib, CPU: guest.CPUSpec{
		Binding: guest.CPUExclusive, SMT: guest.SMTRequire, Emulator: guest.HelperNone,
	}}
	p := guest.Placement{
		Guest: "new", Nodes: nodes("1"), CPUMode: guest.CPUExclusive,
		Cells:        []guest.Cell{{VCPUs: vcpus("0-3"), Memory: 2 * gib, Nodes: nodes("1")}},
		Reservations: []guest.Reservation{{Node: 1, Memory: 2 * gib, VCPUs: 4, Exclusive: cpus("8-11")}},
	}
	for i := range 4 {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: topology.SetOf(topology.CPUID(8 + i))})
	}
	return spec, p
}

// situation is a legal placement of a guest on a host, for a test to change.
type situation struct {
	host   *inventory.Host
	policy policy.Policy
	spec   guest.Spec
	placed guest.Placement
}

// promise adds a claim of another guest to the host.
func (s *situation) promise(r guest.Reservation) {
	name := fmt.Sprintf("claim%d", len(s.host.Claims))
	s.host.Claims = append(s.host.Claims, inventory.Claim{Name: name, Placement: guest.Placement{
		Guest: name, CPUMode: guest.CPURange, Reservations: []guest.Reservation{r},
	}})
}

// ruleCase changes one thing of a legal placement. Want lists the rule and the
// object of each violation, in order; it is empty where the placement stays legal.
type ruleCase struct {
	name   string
	from   func() (guest.Spec, guest.Placement)
	change func(*situation)
	want   []string
}

func want(violations ...string) []string { return violations }

func checkRules(t *testing.T, cases []ruleCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := situation{host: newHost()}
			s.spec, s.placed = c.from()
			c.change(&s)
			violations := Placement(s.host, s.policy, s.spec, s.placed)
			var got []string
			for _, v := range violations {
				got = append(got, fmt.Sprintf("%s %s", v.Rule, v.Object))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%v", diff, Error("new", violations))
			}
		})
	}
}

func TestPlacement_UnchangedCasesAreLegal(t *testing.T) {
	same := func(*situation) {}
	checkRules(t, []ruleCase{
		{"two cells on shared CPUs", shared, same, nil},
		{"exclusive CPUs and 1 GiB pages", alone, same, nil},
		{"sibling pairs", paired, same, nil},
	})
}

func TestViolation_TextAndJSON(t *testing.T) {
	v := Violation{RuleMemory, "node 3", "17 GiB is bound to it in total; it has 16 GiB"}
	err := Error("web1", []Violation{v})
	if want := "VM web1 is not legal: memory: node 3: 17 GiB"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want it to contain %q", err, want)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"rule":"memory","object":"node 3","what":"17 GiB is bound to it in total; it has 16 GiB"}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if err := Error("web1", nil); err != nil {
		t.Errorf("error without violations: %v", err)
	}
}
