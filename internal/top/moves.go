package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

var movingColumns = []column{
	{title: "MOVING", width: 17, most: 40, fixed: true},
	{title: "KIND", width: 17, fixed: true, rank: 4},
	{title: "FROM > TO", width: 9, most: 20, fixed: true},
	{title: "DONE", width: 22, most: 60, fixed: true},
	{title: "PACE", width: 7, right: true, fixed: true},
	{title: "LEFT", width: 5, right: true, fixed: true, rank: 1},
	{title: "NOW", width: 8, most: 50, fixed: true, rank: 3},
}

// movingTable has a row for each move in progress, the oldest first.
func movingTable(s *status.Status) table {
	t := table{name: "moves", columns: movingColumns}
	for i := range s.Moving {
		m := &s.Moving[i]
		share := doneShare(m)
		figures := short(min(m.Done, m.Total)) + "/" + short(m.Total)
		t.rows = append(t.rows, row{key: m.ID, cells: []cell{
			{text: strings.Join(m.Move.Names(), ", ")},
			{text: string(m.Move.Kind)},
			{text: journeys(m.Move)},
			{draw: func(w int) string { return meter(share, figures, w, 9) }, tone: busy},
			{text: short(m.BytesPerSecond) + "/s"},
			{text: left(m)},
			{text: m.Step, tone: quiet},
		}})
	}
	return t
}

var adviceColumns = []column{
	{title: "ADVICE", width: 17, most: 40, fixed: true},
	{title: "KIND", width: 17, fixed: true, rank: 5},
	{title: "FROM > TO", width: 9, most: 20, fixed: true},
	{title: "SAVES", width: 9, right: true, fixed: true},
	{title: "COPY", width: 5, right: true, fixed: true},
	{title: "TAKES", width: 5, right: true, fixed: true, rank: 1},
	{title: "SINCE", width: 5, right: true, fixed: true, rank: 2},
	{title: "WHY", width: 12, most: 120, fixed: true, rank: 4},
}

// adviceTable has a row for each recommended move, in the daemon's order.
func adviceTable(s *status.Status, now time.Time) table {
	t := table{name: "advice", columns: adviceColumns}
	for _, a := range s.Advice {
		t.rows = append(t.rows, row{key: a.ID, cells: []cell{
			{text: strings.Join(a.Move.Names(), ", ")},
			{text: string(a.Move.Kind)},
			{text: journeys(a.Move)},
			{text: fmt.Sprintf("%.2f CPUs", saved(a.Move)), tone: good},
			{text: short(a.Move.Cost.Bytes)},
			{text: takes(a.Move.Cost)},
			{text: span(now.Sub(a.Since))},
			{text: a.Move.Why, tone: quiet},
		}})
	}
	return t
}

// takes is how long copying takes; "-" where nothing has shown it yet.
func takes(p plan.Price) string {
	took, known := p.Time()
	if !known {
		return "-"
	}
	return span(took.Round(time.Second))
}

func doneShare(m *status.Moving) float64 {
	if m.Total == 0 {
		return 1
	}
	return float64(min(m.Done, m.Total)) / float64(m.Total)
}

// left is how long the rest of the copying takes at the current rate; "-" if
// nothing is copied.
func left(m *status.Moving) string {
	switch {
	case m.Done >= m.Total:
		return "0s"
	case m.BytesPerSecond == 0:
		return "-"
	}
	return span(time.Duration(float64(m.Total-m.Done) / float64(m.BytesPerSecond) * float64(time.Second)))
}

func saved(m plan.Move) float64 { return m.Benefit.AccessCPUs + m.Benefit.WaitCPUs }

// journeys shows for each guest of a move its source and target nodes: "0-1 > 2",
// "mem 0>3" where memory alone moves, "cpu 3>1" where vCPUs alone do.
func journeys(m plan.Move) string {
	var parts []string
	for _, g := range m.Guests {
		to := text.Set(g.To())
		switch kind, from := m.Way(g); kind {
		case plan.FetchLocal:
			parts = append(parts, "mem "+text.Set(from)+">"+to)
		case plan.Repin:
			parts = append(parts, "cpu "+text.Set(from)+">"+to)
		default: // vCPUs and memory
			parts = append(parts, text.Set(from)+" > "+to)
		}
	}
	return strings.Join(parts, ", ")
}

func resident(g *inventory.GuestSample) topology.Bytes {
	var sum topology.Bytes
	for _, b := range g.MemoryByNode {
		sum += b
	}
	return sum
}
