// Package statustest makes the status of a busy host, for tests of what shows it.
package statustest

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Noon is when a busy host begins.
var Noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// BusyHost makes the status of a host after this number of seconds: guests of several
// sizes, one of them far from its memory, moves, advice, alarms.
func BusyHost(nodes, guests, second int) status.Status {
	t, err := topology.Synthetic(
		fmt.Sprintf("nodes:%d sockets:%d cores:16 threads:2 memory:256G huge:2M=4096 distances:10,16,28", nodes,
			min(2, nodes)),
	)
	if err != nil {
		panic(err)
	}
	at := Noon.Add(time.Duration(second) * time.Second)
	s := status.Status{
		Host: "hv-rack12", Started: Noon.Add(-26 * time.Hour), Topology: t, Mode: policy.ModeAuto,
		Planned: at.Add(-4 * time.Second),
		Sample:  inventory.Sample{Taken: at, Window: 2 * time.Second, Cost: 4 * time.Millisecond},
		Totals: status.Totals{
			Samples:     46800,
			Plans:       310,
			MovesDone:   41,
			MovesPart:   2,
			MovesFailed: 1,
			Repairs:     7,
			MovedBytes:  812 * topology.GiB,
			PulledBytes: 31 * topology.GiB,
		},
		Self: status.Self{
			CPU:      9*time.Minute + time.Duration(second)*8*time.Millisecond,
			Resident: 43 * topology.MiB,
			Sample:   4100 * time.Microsecond,
			Plan:     21 * time.Millisecond,
		},
	}
	for i := range guests {
		addGuest(&s, i, second)
	}
	for i, n := range t.Nodes {
		sample := inventory.NodeSample{
			NodeLoad:   inventory.NodeLoad{Node: n.ID},
			CPUs:       n.CPUs.Len(),
			Memory:     n.Memory,
			Free:       n.Memory - 9*topology.GiB,
			HugePages:  n.HugePages,
			MemoryMBps: 1500 + 900*float64(i),
		}
		for _, g := range s.Sample.Guests {
			sample.CPU += g.CPUByNode[n.ID]
			sample.Wait += g.Load.Wait / float64(nodes)
			sample.Free -= min(sample.Free, g.MemoryByNode[n.ID])
		}
		s.Sample.Nodes = append(s.Sample.Nodes, sample)
	}
	addTrouble(&s, second)
	return s
}

func addGuest(s *status.Status, i, second int) {
	nodes := len(s.Topology.Nodes)
	home := s.Topology.Nodes[i%nodes].ID
	vcpus := []int{2, 4, 8, 16}[i%4]
	memory := topology.Bytes(vcpus) * 2 * topology.GiB
	cpu := float64(vcpus) * (0.15 + 0.08*float64((i*7+second/20)%5))
	local := 1.0
	g := status.Guest{
		Name:       fmt.Sprintf("%s%d", []string{"web", "db", "cache", "build"}[i%4], i),
		State:      "running",
		Managed:    i%5 != 3,
		Mode:       policy.ModeAuto,
		VCPUs:      vcpus,
		Memory:     memory,
		Nodes:      topology.SetOf(home),
		LocalShare: &local,
	}
	sample := inventory.GuestSample{Name: g.Name, PID: 4000 + i, MemorySource: "cgroup memory.numa_stat",
		Load: inventory.GuestLoad{
			Window:     2 * time.Second,
			CPU:        cpu,
			Wait:       cpu * 0.02 * float64(i%4),
			MemoryMBps: 120 * cpu,
		},
		MemoryByNode: topology.MemoryByNode{home: memory}, CPUByNode: map[topology.NodeID]float64{home: cpu},
		Accesses: []inventory.AccessShare{{From: home, To: home, Share: 1}}}
	remote := 0.0
	if i%6 == 1 && nodes > 1 { // three quarters of its memory are elsewhere
		away := s.Topology.Nodes[(i+nodes/2)%nodes].ID
		sample.MemoryByNode = topology.MemoryByNode{home: memory / 4, away: memory * 3 / 4}
		sample.Accesses = []inventory.AccessShare{{From: home, To: home, Share: 0.3},
			{From: home, To: away, Share: 0.7}}
		local, remote = 0.25, 0.7
		g.Drift = []string{fmt.Sprintf("memory: 75 %% lies on node %d, intended is node %d", away, home)}
	}
	sample.Load.Remote = &inventory.Remote{Share: remote, Source: inventory.AccessPMU}
	if !g.Managed {
		g.Mode, g.Nodes, g.Drift = policy.ModeAdvise, topology.NodeSet{}, nil
		sample.Load.Remote.Source = inventory.AccessEstimate
	}
	if i%11 == 10 {
		g.State = "shutoff"
		g.LocalShare = nil
	} else {
		s.Sample.Guests = append(s.Sample.Guests, sample)
	}
	s.Guests = append(s.Guests, g)
}

// addTrouble makes some of the first guests degraded, and some move.
func addTrouble(s *status.Status, second int) {
	at := s.Sample.Taken
	if len(s.Guests) > 1 {
		m := moveTo(s, 1, plan.FetchLocal)
		s.Moving = []status.Moving{
			{
				ID:             "m42",
				Began:          at.Add(-12 * time.Second),
				Move:           m,
				Step:           "copying memory of cell 0",
				Total:          m.Cost.Bytes,
				Done:           m.Cost.Bytes * topology.Bytes(40+second%50) / 100,
				BytesPerSecond: 512 * topology.MiB,
			},
		}
	}
	if len(s.Guests) > 7 {
		addDegraded(s)
	}
}

// addDegraded makes guest 7 degraded, with advice and raise an alarm; guests 4 and 5 stay where they are.
func addDegraded(s *status.Status) {
	g := s.Guests[7].Name
	at := s.Sample.Taken
	s.Degraded = []plan.Degraded{
		{
			Guest:  g,
			Since:  Noon.Add(-3 * time.Minute),
			Wait:   0.06,
			Access: 0.92,
			Use:    0.2,
			Why:    "70 % of its accesses go to the other socket",
		},
	}
	advised := moveTo(s, 7, plan.MoveGuest)
	advised.Advised = true
	s.Advice = []status.Advice{{ID: "a7", Since: Noon.Add(-2 * time.Minute), Move: advised}}
	s.Blocked = []plan.Blocked{
		{
			Guest: s.Guests[4].Name,
			Kind:  plan.BlockedRefused,
			Why:   "every other node would be filled beyond 90 % of its CPUs",
		},
	}
	s.Guests[5].CooldownUntil = Noon.Add(4 * time.Minute)
	s.Alarms = []alarm.Alarm{
		{
			Quantity:  alarm.GuestRemote,
			Object:    inventory.GuestRef(g),
			Severity:  alarm.Critical,
			Value:     0.7,
			Threshold: 0.3,
			Worst:     0.74,
			Guests:    []string{g},
			Why:       "70 % of its accesses are not local (pmu), limit 30 %",
			First:     Noon.Add(-3 * time.Minute),
			Last:      at,
		},
		{
			Quantity:  alarm.NodeCPU,
			Object:    inventory.NodeRef(1),
			Severity:  alarm.Warning,
			Value:     0.86,
			Threshold: 0.8,
			Worst:     0.9,
			Guests:    []string{g, s.Guests[5].Name},
			Why:       "86 % of its CPUs are in use, limit 80 %",
			First:     Noon.Add(-40 * time.Second),
			Last:      at,
		},
	}
	s.Competitors = []status.Competitor{
		{
			Name:   "kernel NUMA balancing",
			What:   "moved 120 MiB in the last 2 s",
			Answer: "switched off for guests that are bound",
		},
	}
}

// moveTo is a move of a guest and three quarters of its memory to the last node.
func moveTo(s *status.Status, guestAt int, kind plan.MoveKind) plan.Move {
	g := s.Guests[guestAt]
	last := s.Topology.Nodes[len(s.Topology.Nodes)-1].ID
	bytes := g.Memory * 3 / 4
	return plan.Move{
		Kind: kind,
		Why: fmt.Sprintf("%s loses 1.2 CPUs to memory on the other socket; node %v has 20 CPUs and 180 GiB free",
			g.Name, last),
		Guests: []plan.GuestMove{{
			Guest:     g.Name,
			Bytes:     bytes,
			Placement: guest.Placement{Guest: g.Name, Nodes: topology.SetOf(last)},
			Undo: plan.Undo{
				VCPUNodes: topology.SetOf(s.Topology.Nodes[0].ID),
				Memory:    topology.MemoryByNode{s.Topology.Nodes[0].ID: g.Memory},
			},
		}},
		Benefit: plan.Benefit{Cost: 2.4, AccessCPUs: 1.2, WaitCPUs: 0.15, Horizon: 30 * time.Minute},
		Cost: plan.Price{
			Cost: 0.03, Bytes: bytes, Took: 6 * time.Second, BytesPerSecond: topology.GiB,
			RateMeasured: true, PageTables: 0.25,
		},
	}
}
