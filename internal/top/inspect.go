package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// inspected shows all that is known of the selected row of the focused pane.
func (m Model) inspected() []string {
	key := m.focuses[m.pane].key
	s := m.status
	var texts []string
	switch m.pane {
	case nodesPane:
		texts = m.nodeDetails(key)
	case guestsPane:
		for _, p := range vmStates(s) {
			if p.Name == key {
				texts = m.guestDetails(&p)
			}
		}
	case movingPane:
		for i := range s.Moving {
			if s.Moving[i].ID == key {
				texts = m.movingDetails(&s.Moving[i])
			}
		}
	case advicePane:
		for _, a := range s.Advice {
			if a.ID == key {
				texts = append(
					[]string{head("Recommended move " + a.ID +
						" since " + span(m.now.Sub(a.Since)) + " (a accepts it)")},
					moveLines(a.Move)...)
			}
		}
	case alarmsPane:
		for _, a := range s.Alarms {
			if alarmKey(a) == key && a.Active() {
				texts = append([]string{head("Alarm: " + key)}, alarmLines(a, m.now)...)
			}
		}
	case panes: // their number
	}
	if texts == nil {
		return []string{fmt.Sprintf("%s is gone; esc goes back", oneLine(key))}
	}
	var lines []string
	for _, t := range texts {
		lines = append(lines, m.laid(t)...)
	}
	return lines
}

// laid wraps a line of details; it cuts lines with a style or a drawing.
func (m Model) laid(text string) []string {
	if strings.ContainsAny(text, "\x1b▏▕") {
		return []string{text}
	}
	return wrapped(text, m.width, 14)
}

// head is a line that begins a section of the details.
func head(text string) string { return headStyle.Render(oneLine(text)) }

// said is a line of details: a label and its value.
func said(what, format string, args ...any) string {
	return oneLine(fmt.Sprintf("%-13s ", what) + fmt.Sprintf(format, args...))
}

func (m Model) guestDetails(p *vmState) []string {
	texts := []string{head(fmt.Sprintf("VM %s: %s, %d vCPUs, %v", p.Name, p.State, p.VCPUs, p.Memory))}
	by := "unmanaged"
	if p.Managed {
		by = "managed by numavisor"
	}
	texts = append(texts, said("mode", "%s; %s", p.Mode, by), said("placed on", "nodes %s", text.Set(p.Nodes)))
	if p.degradation != nil {
		u := p.degradation
		texts = append(
			texts,
			said("degraded", "for %s: %s", span(m.now.Sub(u.Since)), u.Why),
			said("", "wait %s, access latency +%s over the best, memory bandwidth %s in use", percent(u.Wait),
				percent(u.Access), percent(u.Use)),
		)
	}
	if p.blocked != "" {
		texts = append(texts, said("blocked", "%s", p.blocked))
	}
	if !p.CooldownUntil.IsZero() {
		texts = append(texts, said("cooldown", "until %s", p.CooldownUntil.Format(time.TimeOnly)))
	}
	for _, d := range p.Drift {
		texts = append(texts, said("drift", "%s", d))
	}
	if h := p.handedOver(); h != nil {
		texts = append(texts, handOver(h)...)
	}
	if s := p.scaled(); s != nil {
		texts = append(texts, scaled(s)...)
	}
	if p.sample != nil {
		texts = append(texts, m.measured(p)...)
	}
	if p.moving != nil {
		texts = append(texts, "")
		texts = append(texts, m.movingDetails(p.moving)...)
	}
	if p.advice != nil {
		texts = append(texts, "", head("Recommended (a accepts it)"))
		texts = append(texts, moveLines(p.advice.Move)...)
	}
	return append(texts, m.alarmsOf(inventory.GuestRef(p.Name), p.Name)...)
}

// handOver shows what a mirrored guest has of the CPUs that guests hand to each other.
func handOver(h *inventory.HandedOver) []string {
	demand := "its demand is unknown"
	if h.Demand != nil {
		demand = fmt.Sprintf("demands %.1f", *h.Demand)
	}
	times := "none was asked for"
	if n := h.Times.Count(); n > 0 {
		times = fmt.Sprintf("%d, median %s, 99 %% %s", n, within(&h.Times, 0.5), within(&h.Times, 0.99))
	}
	texts := []string{
		said("hand-over", "has %s (CPUs %s), %s; at least %d, weight %d", text.Count(h.CPUs.Len(), "CPU", "CPUs"),
			text.Set(h.CPUs), demand, h.Min, h.Weight),
		said("agent", "%s", h.AgentText()),
		said("taken", "%s since the daemon first saw it", text.Count(h.Taken, "CPU", "CPUs")),
		said("releases", "%s; refused %d", times, h.Refused),
	}
	if h.Misbehaved > 0 {
		texts = append(texts, said("misbehaved", "%s after the VM had released it, the last at %s",
			text.Count(h.Misbehaved, "vCPU ran", "vCPUs ran"), h.MisbehavedAt.Local().Format(time.TimeOnly)))
	}
	return texts
}

// scaled shows which vCPUs a guest uses whose number of vCPUs follows its demand.
func scaled(s *inventory.Scaled) []string {
	used, demand := "all", "its demand is unknown"
	if !s.Used.IsEmpty() {
		used = fmt.Sprintf("%d (%s)", s.Used.Len(), text.Set(s.Used))
	}
	if s.Demand != nil {
		demand = fmt.Sprintf("demands %.1f", *s.Demand)
	}
	texts := []string{
		said("vCPUs", "uses %s, %s; at least %d, weight %d", used, demand, s.Min, s.Weight),
		said("agent", "%s", s.AgentText()),
	}
	if len(s.Divided) > 0 {
		texts = append(texts, said("by accesses", "vCPUs %s", s.DividedText()))
	}
	return texts
}

// within says under which time a share of the releases was.
func within(times *inventory.HandoverTimes, share float64) string {
	if most, ok := times.Quantile(share); ok {
		return fmt.Sprintf("under %v", most)
	}
	return "over 1 s"
}

// measured shows the last sample of a guest, and the trends.
func (m Model) measured(p *vmState) []string {
	g := p.sample
	var texts []string
	if p.LocalShare != nil {
		by := ""
		if p.LocalSource != "" {
			by = ", by " + p.LocalSource
		}
		texts = append(texts,
			said("local", "%s of its memory is local to the vCPUs that use it%s", percent(*p.LocalShare), by))
	}
	texts = append(texts, "", head(fmt.Sprintf("The last %s", fine(g.Load.Window))))
	wide := max(4, min(60, m.width-45))
	line := func(what, figures string, most float64, value func(guestMoment) float64) {
		texts = append(texts,
			said(what, "%-28s ▏%s▏", figures, sparkline(guestTrend(m.seen, p.Name, wide, value), most)))
	}
	line("CPU", fmt.Sprintf("%.2f used, %.2f wanted", g.Load.CPU, g.Load.Demand()), float64(p.VCPUs),
		func(v guestMoment) float64 { return v.demand })
	line("wait", fmt.Sprintf("%s of its demand", percent(waitShare(&g.Load))), 0.1,
		func(v guestMoment) float64 { return v.wait })
	if g.Load.Throttled > 0 {
		texts = append(texts, said("throttled", "%.2f CPUs held back by its own quota", g.Load.Throttled))
	}
	if g.Load.Ungranted > 0 {
		texts = append(texts, said("ungranted", "%.2f CPUs that it is not granted", g.Load.Ungranted))
	}
	if r := g.Load.Remote; r != nil {
		line("remote", fmt.Sprintf("%s by %s", percent(r.Share), r.Source), 0.1,
			func(v guestMoment) float64 { return v.remote })
	}
	if g.Load.MemoryMBps > 0 {
		texts = append(texts, said("traffic", "%s to memory", traffic(g.Load.MemoryMBps)))
	}
	texts = append(texts, "", head("By node (memory from "+orDash(g.MemorySource)+")"))
	texts = append(texts, spread(&m.status.Topology, p)...)
	return append(texts, accesses(&m.status.Topology, g)...)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// spread has a line for each node on which a guest runs, has memory or is
// placed.
func spread(t *topology.Topology, p *vmState) []string {
	g := p.sample
	whole := max(1, resident(g))
	var texts []string
	for _, n := range t.Nodes {
		memory, cpu := g.MemoryByNode[n.ID], g.CPUByNode[n.ID]
		if memory == 0 && cpu == 0 && !p.Nodes.Contains(n.ID) {
			continue
		}
		meant := ""
		switch {
		case p.Nodes.Contains(n.ID):
			meant = "placed here"
		case !p.Nodes.IsEmpty():
			meant = "not placed here"
		}
		texts = append(
			texts,
			said(inventory.NodeRef(n.ID).String(), "▕%s▏ %9v  %5.2f CPUs  %s", bar(float64(memory)/float64(whole), 20),
				memory, cpu, meant),
		)
	}
	return texts
}

// accesses shows a guest's accesses by distance class, and the pairs of nodes
// with most of them.
func accesses(t *topology.Topology, g *inventory.GuestSample) []string {
	if len(g.Accesses) == 0 {
		return nil
	}
	texts := []string{"", head("Accesses by distance")}
	byClass := classShares(t, g.Accesses)
	for _, c := range []topology.Class{topology.Local, topology.Neighbour, topology.Remote} {
		texts = append(texts, said(string(c), "▕%s▏ %4s", bar(byClass[c], 20), percent(byClass[c])))
	}
	paths := slices.Clone(g.Accesses)
	slices.SortStableFunc(paths, func(a, b inventory.AccessShare) int { return cmp.Compare(b.Share, a.Share) })
	var parts []string
	for _, a := range paths[:min(8, len(paths))] {
		parts = append(parts, fmt.Sprintf("%d > %d %s", a.From, a.To, percent(a.Share)))
	}
	return append(texts, said("from > to", "%s", strings.Join(parts, ", ")))
}

// classShares sums shares of accesses by distance class; pairs that the
// topology does not know count as remote.
func classShares(t *topology.Topology, shares []inventory.AccessShare) map[topology.Class]float64 {
	sums := map[topology.Class]float64{}
	for _, a := range shares {
		class := topology.Remote
		if n, ok := t.Node(a.From); ok && n.Classes[a.To] != "" {
			class = n.Classes[a.To]
		}
		sums[class] += a.Share
	}
	return sums
}

func (m Model) movingDetails(v *status.Moving) []string {
	texts := []string{
		head("Move " + v.ID + " in progress for " + span(m.now.Sub(v.Began)) + " (c cancels it)"),
		said("done", "▕%s▏ %s", bar(doneShare(v), 30), percent(doneShare(v))),
		said("copied", "%v of %v at %v/s, %s left", min(v.Done, v.Total), v.Total, v.BytesPerSecond, left(v)),
		said("now", "%s", v.Step),
	}
	return append(texts, moveLines(v.Move)...)
}

// moveLines describe a move completely: guests and nodes, the reason, the gain
// and the cost.
func moveLines(v plan.Move) []string {
	var texts []string
	for _, g := range v.Guests {
		kind, from := v.Way(g)
		texts = append(texts, said("move", "%s: %s from nodes %s to nodes %s, %v to copy", kind, g.Guest,
			text.Set(from), text.Set(g.To()), g.Bytes))
	}
	texts = append(
		texts,
		said("why", "%s", v.Why),
		said("benefit",
			"%.2f CPUs not lost to remote memory, %.2f CPUs not waited for, for %s; the host's cost falls by %.3g",
			v.Benefit.AccessCPUs, v.Benefit.WaitCPUs, length(v.Benefit.Horizon), v.Benefit.Cost),
		said("price", "%v; costs %.3g", v.Cost, v.Cost.Cost),
	)
	if v.Cost.PageTables > 0 {
		texts = append(texts, said("", "%s of the page tables stay behind", percent(v.Cost.PageTables)))
	}
	return texts
}

// alarmsOf returns the alarms of an object, and those that name a guest among
// the causes.
func (m Model) alarmsOf(object inventory.Ref, guest string) []string {
	var texts []string
	for _, a := range m.status.Alarms {
		if a.Active() && (a.Object == object || guest != "" && slices.Contains(a.Guests, guest)) {
			texts = append(texts, "", head(fmt.Sprintf("Alarm: %s", alarmKey(a))))
			texts = append(texts, alarmLines(a, m.now)...)
		}
	}
	return texts
}

func alarmLines(a alarm.Alarm, now time.Time) []string {
	texts := []string{
		said("severity", "%s for %s, last beyond its limit %s ago", a.Severity, span(now.Sub(a.First)),
			span(now.Sub(a.Last))),
		said("value", "%s, limit %s, worst %s", a.Quantity.Amount(a.Value), a.Quantity.Amount(a.Threshold),
			a.Quantity.Amount(a.Worst)),
		said("why", "%s", a.Why),
	}
	if len(a.Guests) > 0 {
		texts = append(texts, said("caused by", "%s", strings.Join(a.Guests, ", ")))
	}
	return texts
}

func (m Model) nodeDetails(key string) []string {
	id, err := strconv.Atoi(key)
	i := slices.IndexFunc(m.status.Sample.Nodes, func(n inventory.NodeSample) bool { return int(n.Node) == id })
	if err != nil || i < 0 {
		return nil
	}
	n := m.status.Sample.Nodes[i]
	wide := max(4, min(60, m.width-45))
	line := func(what, figures string, most float64, value func(nodeMoment) float64) string {
		return said(what, "%-28s ▏%s▏", figures, sparkline(nodeTrend(m.seen, n.Node, wide, value), most))
	}
	texts := []string{
		head(fmt.Sprintf("Node %d: %d CPUs, %v", n.Node, n.CPUs, n.Memory)),
		line("CPU", fmt.Sprintf("%.2f of %d in use", n.CPU, n.CPUs), float64(n.CPUs),
			func(v nodeMoment) float64 { return v.cpu }),
		line("wait", fmt.Sprintf("%.2f threads", n.Wait), 1, func(v nodeMoment) float64 { return v.wait }),
		line("memory", fmt.Sprintf("%s used, %v free", percent(used(n)), n.Free), 1,
			func(v nodeMoment) float64 { return v.used }),
		said("traffic", "%s", traffic(n.MemoryMBps)),
		said("pools", "%s (free/all)", pools(n.HugePages)),
	}
	if t, ok := m.status.Topology.Node(n.Node); ok {
		texts = append(texts, said("CPUs", "%s", t.CPUs), said("distances", "%s", distances(&m.status.Topology, t)))
	}
	texts = append(texts, "", head("VMs here"))
	texts = append(texts, tenants(m.status, n.Node)...)
	return append(texts, m.alarmsOf(inventory.NodeRef(n.Node), "")...)
}

// distances lists the distance classes of the other nodes from one node:
// "neighbour 1-3, remote 4-7".
func distances(t *topology.Topology, n *topology.Node) string {
	var parts []string
	for _, c := range []topology.Class{topology.Neighbour, topology.Remote} {
		var nodes []topology.NodeID
		for _, other := range t.Nodes {
			if n.Classes[other.ID] == c {
				nodes = append(nodes, other.ID)
			}
		}
		if len(nodes) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", c, topology.SetOf(nodes...)))
		}
	}
	return orDash(strings.Join(parts, ", "))
}

// tenants has a line for each guest that runs on a node or has memory there,
// those with most memory first.
func tenants(s *status.Status, id topology.NodeID) []string {
	var here []inventory.GuestSample
	for _, g := range s.Sample.Guests {
		if g.MemoryByNode[id] > 0 || g.CPUByNode[id] > 0 {
			here = append(here, g)
		}
	}
	slices.SortStableFunc(here,
		func(a, b inventory.GuestSample) int { return cmp.Compare(b.MemoryByNode[id], a.MemoryByNode[id]) })
	var texts []string
	for _, g := range here {
		whole := max(1, resident(&g))
		texts = append(
			texts,
			fmt.Sprintf("%s %9v, %4s of its memory; %5.2f of its %5.2f CPUs", fit(g.Name, 24), g.MemoryByNode[id],
				percent(float64(g.MemoryByNode[id])/float64(whole)), g.CPUByNode[id], g.Load.CPU),
		)
	}
	if len(texts) == 0 {
		return []string{"none"}
	}
	return texts
}
