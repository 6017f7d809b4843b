package scale

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func vcpu(id int, on topology.NodeID, byNode ...float64) inventory.VCPUAccess {
	a := inventory.VCPUAccess{VCPU: guest.VCPUID(id), On: on, ByNode: map[topology.NodeID]float64{}}
	for n, count := range byNode {
		a.ByNode[topology.NodeID(n)] = count
	}
	return a
}

func TestDivide(t *testing.T) {
	four := map[topology.NodeID]int{0: 4, 1: 4}
	for _, c := range []struct {
		name     string
		accesses []inventory.VCPUAccess
		room     map[topology.NodeID]int
		want     []topology.NodeID
	}{
		{"each to its memory", []inventory.VCPUAccess{vcpu(0, 1, 9, 1), vcpu(1, 0, 1, 9)}, four, []topology.NodeID{0, 1}},
		{"intensive ones apart, the one that loses less away from its memory",
			[]inventory.VCPUAccess{vcpu(0, 0, 9, 1), vcpu(1, 0, 8, 2)}, four, []topology.NodeID{0, 1}},
		{"idle ones may crowd", []inventory.VCPUAccess{vcpu(0, 0, 100, 0), vcpu(1, 0, 2, 0), vcpu(2, 0, 2, 0)}, four,
			[]topology.NodeID{0, 0, 0}},
		{"noise moves none", []inventory.VCPUAccess{vcpu(0, 0, 49, 51), vcpu(1, 1, 51, 49)}, four, []topology.NodeID{0, 1}},
		{"no room where the memory is", []inventory.VCPUAccess{vcpu(0, 1, 9, 0), vcpu(1, 1, 1, 0)},
			map[topology.NodeID]int{0: 1, 1: 1}, []topology.NodeID{0, 1}},
		{"nothing was counted", []inventory.VCPUAccess{vcpu(0, 1), vcpu(1, 1)}, four, []topology.NodeID{1, 1}},
		{"no vCPUs", nil, four, []topology.NodeID{}},
	} {
		got, err := Divide(c.accesses, c.room)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

func TestDivideRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		accesses []inventory.VCPUAccess
		room     map[topology.NodeID]int
	}{
		"no room":         {[]inventory.VCPUAccess{vcpu(0, 0, 1), vcpu(1, 0, 1)}, map[topology.NodeID]int{0: 1}},
		"no nodes":        {[]inventory.VCPUAccess{vcpu(0, 0, 1)}, nil},
		"a negative room": {nil, map[topology.NodeID]int{0: -1}},
		"a negative count": {[]inventory.VCPUAccess{vcpu(0, 0, -1)},
			map[topology.NodeID]int{0: 1}},
		"no number": {[]inventory.VCPUAccess{vcpu(0, 0, math.NaN())}, map[topology.NodeID]int{0: 1}},
		"too many":  {[]inventory.VCPUAccess{vcpu(0, 0, math.Inf(1))}, map[topology.NodeID]int{0: 1}},
	} {
		if at, err := Divide(c.accesses, c.room); err == nil {
			t.Errorf("%s: %v", name, at)
		}
	}
}

// lost is what a division costs, computed from its description.
func lost(accesses []inventory.VCPUAccess, at []topology.NodeID) (sum float64) {
	for i, a := range accesses {
		all := 0.0
		for _, count := range a.ByNode {
			all += count
		}
		if sum += all - a.ByNode[at[i]]; at[i] != a.On {
			sum += 0.1 * all
		}
	}
	return sum
}

// legal reports whether a division is within the rooms, and how many intensive vCPUs the fullest node has.
func legal(accesses []inventory.VCPUAccess, room map[topology.NodeID]int, at []topology.NodeID) (ok bool, fullest int) {
	most := 0.0
	for i := range accesses {
		most = max(most, accesses[i].Total())
	}
	vcpus, busy := map[topology.NodeID]int{}, map[topology.NodeID]int{}
	for i, n := range at {
		vcpus[n]++
		if most > 0 && accesses[i].Total() >= most/4 {
			busy[n]++
		}
	}
	ok = true
	for n, count := range vcpus {
		ok = ok && count <= room[n]
		fullest = max(fullest, busy[n])
	}
	return ok, fullest
}

// No division spreads intensive vCPUs more evenly, and of those as even none loses less.
func TestDivide_EqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 3).Draw(t, "nodes")
		room := map[topology.NodeID]int{}
		for n := range nodes {
			room[topology.NodeID(n)] = rapid.IntRange(0, 4).Draw(t, "room")
		}
		var accesses []inventory.VCPUAccess
		for i := range rapid.IntRange(0, 5).Draw(t, "vCPUs") {
			a := inventory.VCPUAccess{VCPU: guest.VCPUID(i), On: topology.NodeID(rapid.IntRange(0, nodes-1).Draw(t, "on")),
				ByNode: map[topology.NodeID]float64{}}
			for n := range nodes {
				a.ByNode[topology.NodeID(n)] = rapid.SampledFrom([]float64{0, 0, 1, 7, 100, 1000}).Draw(t, fmt.Sprint("to ", n))
			}
			accesses = append(accesses, a)
		}
		got, err := Divide(accesses, room)
		best, even, most := math.Inf(1), math.MaxInt, 0.0
		at := make([]topology.NodeID, len(accesses))
		for way := range int(math.Pow(float64(nodes), float64(len(accesses)))) {
			for i := range at {
				at[i] = topology.NodeID(way % nodes)
				way /= nodes
			}
			ok, fullest := legal(accesses, room, at)
			if loss := lost(accesses, at); ok && (fullest < even || fullest == even && loss < best) {
				best, even = loss, fullest
			}
		}
		if (err == nil) != (even < math.MaxInt) {
			t.Fatalf("%v, %v; possible: %v", got, err, even < math.MaxInt)
		}
		if err != nil {
			return
		}
		for i := range accesses {
			most = max(most, accesses[i].Total())
		}
		ok, fullest := legal(accesses, room, got)
		if loss := lost(accesses, got); !ok || fullest != even || loss > best+2*float64(len(accesses))*resolution*most {
			t.Fatalf("%v loses %v with %d on a node; possible is %v with %d", got, loss, fullest, best, even)
		}
	})
}
