package handoff_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	words "github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/decide/alarm"
	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// crowded is a sample of a mirrored guest of 8 vCPUs that are all busy, on two CPUs of node 1.
func crowded() inventory.Sample {
	return inventory.Sample{
		Window: time.Second,
		Nodes: []inventory.NodeSample{
			{NodeLoad: inventory.NodeLoad{Node: 0}, CPUs: 4, Memory: topology.GiB, Free: topology.GiB},
			{NodeLoad: inventory.NodeLoad{Node: 1, CPU: 2, Wait: 6}, CPUs: 4, Memory: topology.GiB, Free: topology.GiB},
		},
		Guests: []inventory.GuestSample{{
			Name: "m", Load: inventory.GuestLoad{Window: time.Second, CPU: 2, Wait: 6},
			CPUByNode: map[topology.NodeID]float64{1: 2},
		}},
		Pressure: inventory.Pressure{Memory: new(0.0)},
	}
}

// alarms returns what lasting samples like this one raise.
func alarms(s inventory.Sample) (raised []words.Quantity) {
	var state words.State
	now := time.Unix(1_800_000_000, 0)
	for range 200 {
		var changes []words.Alarm
		state, changes = alarm.Judge(nil, alarm.Input{Sample: s, Guests: []alarm.Guest{{Name: "m"}}}, state, now)
		for _, a := range changes {
			raised = append(raised, a.Quantity)
		}
		now = now.Add(time.Second)
	}
	return raised
}

func holding(open float64) map[string]handoff.Holding {
	return map[string]handoff.Holding{"m": {Open: open, HandedOver: inventory.HandedOver{
		CPUs: topology.SetOf[topology.CPUID](4, 5), Min: 2, Weight: 100, Means: "partition"}}}
}

// vCPUs without a grant share the CPUs of their guest by design: no alarm says that they wait.
func TestVCPUsWithoutAGrantRaiseNoAlarm(t *testing.T) {
	s := crowded()
	if got := alarms(s); len(got) == 0 {
		t.Fatal("the same waits of a guest that hands no CPUs over raise no alarm: the test shows nothing")
	}
	handoff.Attribute(&s, holding(2))
	if got := alarms(s); len(got) > 0 {
		t.Errorf("alarms %v", got)
	}
	g := s.Guests[0]
	if g.Load.Wait != 0 || g.Load.Ungranted != 6 || s.Nodes[1].Wait != 0 || g.HandedOver.Min != 2 {
		t.Errorf("guest %+v, node %+v", g.Load, s.Nodes[1].NodeLoad)
	}
}

// What others take of a mirrored guest's CPUs is a wait like that of any guest.
func TestAWaitForOthersStillRaisesTheAlarm(t *testing.T) {
	s := crowded()
	s.Guests[0].Load.CPU = 0.5 // another program uses one and a half of its two CPUs
	handoff.Attribute(&s, holding(2))
	l := s.Guests[0].Load
	if math.Abs(l.Wait-1.5) > 1e-9 || math.Abs(l.Ungranted-4.5) > 1e-9 || math.Abs(s.Nodes[1].Wait-1.5) > 1e-9 {
		t.Errorf("guest %+v, node %+v", l, s.Nodes[1].NodeLoad)
	}
	if got := alarms(s); len(got) == 0 {
		t.Error("no alarm")
	}
}

// A guest that was started on CPUs which other guests still have waits for them.
func TestAGuestWithoutAnyGrantWaits(t *testing.T) {
	s := crowded()
	handoff.Attribute(&s, holding(0))
	if l := s.Guests[0].Load; l.Wait != 6 || l.Ungranted != 0 {
		t.Errorf("guest %+v", l)
	}
}

// Laws: no wait is lost or made up, none is negative, other guests are left as they are.
func TestAttributeLaws(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 40))
		s := crowded()
		g := &s.Guests[0]
		g.Load.CPU, g.Load.Wait = 8*r.Float64(), 8*r.Float64()
		share := r.Float64()
		g.CPUByNode = map[topology.NodeID]float64{0: share * g.Load.CPU, 1: (1 - share) * g.Load.CPU}
		s.Nodes[0].Wait, s.Nodes[1].Wait = 8*r.Float64(), 8*r.Float64()
		other := inventory.GuestSample{Name: "o", Load: inventory.GuestLoad{CPU: 1, Wait: 1}}
		s.Guests = append(s.Guests, other)
		wait, nodes := g.Load.Wait, s.Nodes[0].Wait+s.Nodes[1].Wait
		open := 0.01 + 8*r.Float64()
		handoff.Attribute(&s, holding(open))
		l := s.Guests[0].Load
		if l.Wait < 0 || l.Ungranted < 0 || math.Abs(l.Wait+l.Ungranted-wait) > 1e-9 {
			t.Fatalf("seed %d: a wait of %v becomes %v and %v", seed, wait, l.Wait, l.Ungranted)
		}
		if l.Wait > max(0, open-l.CPU)+1e-9 {
			t.Fatalf("seed %d: others take %v of %v CPUs, of which the guest used %v", seed, l.Wait, open, l.CPU)
		}
		after := s.Nodes[0].Wait + s.Nodes[1].Wait
		if s.Nodes[0].Wait < 0 || s.Nodes[1].Wait < 0 || nodes-after > l.Ungranted+1e-9 {
			t.Fatalf("seed %d: nodes wait %v after %v, of which %v are the guest's own", seed, after, nodes, l.Ungranted)
		}
		if o := s.Guests[1]; o.Load.Wait != 1 || o.HandedOver != nil {
			t.Fatalf("seed %d: another guest became %+v", seed, o)
		}
	}
}
