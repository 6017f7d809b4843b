package top

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

var nodeColumns = []column{
	{title: "NODE", width: 13},
	{title: "CPU", width: 16, most: 36, high: true},
	{title: "WAIT", width: 5, right: true, high: true},
	{title: "MEMORY", width: 16, most: 36, high: true},
	{title: "FREE", width: 5, right: true},
	{title: "REMOTE", width: 6, right: true, high: true, rank: 1},
	{title: "TRAFFIC", width: 8, right: true, high: true, rank: 2},
	{title: "VMS", width: 4, right: true, high: true, rank: 3},
	{title: "POOLS FREE/ALL", width: 22, most: 34, rank: 4, fixed: true},
	{title: trendTitle, width: 12, most: 40, rank: 5, fixed: true},
}

// nodeTable has a row for each node of the host.
func nodeTable(s *status.Status, seen []moment) table {
	t := table{name: "nodes", columns: nodeColumns}
	homes := guestsByNode(s)
	remote := remoteByNode(s)
	for _, n := range s.Sample.Nodes {
		t.rows = append(t.rows, nodeRow(s, n, homes[n.Node], remote, seen))
	}
	return t
}

func nodeRow(
	s *status.Status, n inventory.NodeSample, guests int, remotes map[topology.NodeID]float64, seen []moment,
) row {
	name := fmt.Sprint(n.Node)
	if n.CPUs == 0 {
		name += " memory"
	}
	worst := alarmed(s, inventory.NodeRef(n.Node))
	if worst != plain {
		name += " !"
	}
	cpu := cell{text: "no CPUs", tone: quiet, order: -1}
	if n.CPUs > 0 {
		share := n.CPU / float64(n.CPUs)
		figures := fmt.Sprintf("%s/%d", cpus(n.CPU), n.CPUs)
		cpu = cell{
			order: share,
			tone:  toneOf(share, 0.8, 0.95),
			draw:  func(w int) string { return meter(share, figures, w, 8) },
		}
	}
	wait := cell{text: number(round(n.Wait)), order: n.Wait, tone: quiet}
	if n.CPUs > 0 && n.Wait/float64(n.CPUs) >= 0.1 {
		wait.tone = warn
	}
	memory := cell{text: "no memory", tone: quiet, order: -1}
	if n.Memory > 0 {
		share, figures := used(n), short(n.Memory-min(n.Free, n.Memory))+"/"+short(n.Memory)
		memory = cell{
			order: share,
			tone:  toneOf(share, 0.9, 0.97),
			draw:  func(w int) string { return meter(share, figures, w, 9) },
		}
	}
	remote := cell{text: "-", tone: quiet, order: -1}
	if share, ok := remotes[n.Node]; ok {
		remote = cell{text: percent(share), order: share, tone: toneOf(share, 0.1, 0.3)}
	}
	return row{key: fmt.Sprint(n.Node), cells: []cell{
		{text: name, order: float64(n.Node), tone: worst},
		cpu, wait, memory,
		{text: short(n.Free), order: float64(n.Free)},
		remote,
		{text: traffic(n.MemoryMBps), order: n.MemoryMBps},
		{text: fmt.Sprint(guests), order: float64(guests)},
		{text: pools(n.HugePages), tone: quiet},
		{draw: func(w int) string {
			return sparkline(nodeTrend(seen, n.Node, w, func(m nodeMoment) float64 { return m.cpu }), float64(n.CPUs))
		}, tone: busy},
	}}
}

func round(v float64) float64 {
	if v < 0.05 {
		return 0
	}
	return float64(int(v*10+0.5)) / 10
}

// pools shows huge page pools: "2M 300/512, 1G 0/4".
func pools(of []topology.HugePagePool) string {
	var parts []string
	for _, p := range of {
		if p.Total > 0 {
			parts = append(parts, fmt.Sprintf("%s %d/%d", short(p.Size), p.Free, p.Total))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// guestsByNode counts the guests that use CPUs of a node, or have memory there.
func guestsByNode(s *status.Status) map[topology.NodeID]int {
	count := map[topology.NodeID]int{}
	for i := range s.Sample.Guests {
		for _, n := range s.Sample.Nodes {
			g := &s.Sample.Guests[i]
			if g.MemoryByNode[n.Node] > 0 || g.CPUByNode[n.Node] > 0 {
				count[n.Node]++
			}
		}
	}
	return count
}

// remoteByNode is the share of the accesses by a node's CPUs that go to other
// nodes: the mean over the guests that run there, by the CPU time that each
// uses. Guests with only a total share count with it on every node.
func remoteByNode(s *status.Status) map[topology.NodeID]float64 {
	far, all := map[topology.NodeID]float64{}, map[topology.NodeID]float64{}
	for i := range s.Sample.Guests {
		g := &s.Sample.Guests[i]
		if len(g.Accesses) == 0 && g.Load.Remote != nil {
			for n, cpu := range g.CPUByNode {
				far[n] += cpu * g.Load.Remote.Share
				all[n] += cpu
			}
		}
		for _, a := range g.Accesses {
			all[a.From] += a.Share * g.Load.CPU
			if a.From != a.To {
				far[a.From] += a.Share * g.Load.CPU
			}
		}
	}
	for n, sum := range all {
		if sum <= 0 {
			delete(far, n)
			continue
		}
		far[n] /= sum
	}
	return far
}

// alarmed returns the tone of the most severe alarm of an object; plain without
// any.
func alarmed(s *status.Status, object inventory.Ref) tone {
	worst := plain
	for _, a := range s.Alarms {
		switch {
		case a.Object != object || !a.Active():
		case a.Severity == alarm.Critical:
			return bad
		default:
			worst = warn
		}
	}
	return worst
}
