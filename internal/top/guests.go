package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
)

var guestColumns = []column{
	{title: "VM", width: 15, most: 32},
	{title: "NODES", width: 5, most: 12, fixed: true, rank: 3},
	{title: "VCPU", width: 4, right: true, high: true, rank: 6},
	{title: "CPU", width: 5, right: true, high: true},
	{title: "WAIT", width: 4, right: true, high: true},
	{title: "MEMORY BY NODE", width: 14, most: 60, high: true, rank: 4},
	{title: "LOCAL", width: 5, right: true, rank: 2},
	{title: "REMOTE", width: 8, most: 12, high: true},
	{title: "MODE", width: 6, rank: 5},
	{title: "STATE", width: 14, most: 30, high: true},
	{title: trendTitle, width: 12, most: 40, rank: 7, fixed: true},
}

// sourceLabels are short names of the sources of access figures.
var sourceLabels = map[inventory.AccessSource]string{
	inventory.AccessResctrl: "mbm", inventory.AccessPMU: "pmu",
	inventory.AccessCounter: "lab", inventory.AccessEstimate: "est",
}

// vmState joins all that a status says about one guest.
type vmState struct {
	status.Guest
	sample      *inventory.GuestSample // nil: not running
	degradation *plan.Degraded
	blocked     string
	moving      *status.Moving
	advice      *status.Advice
}

// vmStates joins the parts of a status by guest.
func vmStates(s *status.Status) []vmState {
	all := make([]vmState, len(s.Guests))
	at := make(map[string]int, len(all))
	for i, g := range s.Guests {
		all[i].Guest = g
		at[g.Name] = i
	}
	each := func(name string, tell func(*vmState)) {
		if i, ok := at[name]; ok {
			tell(&all[i])
		}
	}
	for i := range s.Sample.Guests {
		each(s.Sample.Guests[i].Name, func(p *vmState) { p.sample = &s.Sample.Guests[i] })
	}
	for i := range s.Degraded {
		each(s.Degraded[i].Guest, func(p *vmState) { p.degradation = &s.Degraded[i] })
	}
	for _, r := range s.Blocked {
		each(r.Guest, func(p *vmState) { p.blocked = r.Why })
	}
	for i := range s.Moving {
		for _, g := range s.Moving[i].Move.Guests {
			each(g.Guest, func(p *vmState) { p.moving = &s.Moving[i] })
		}
	}
	for i := range s.Advice {
		for _, g := range s.Advice[i].Move.Guests {
			each(g.Guest, func(p *vmState) { p.advice = &s.Advice[i] })
		}
	}
	return all
}

// guestTable has a row for each guest that the daemon knows.
func guestTable(s *status.Status, seen []moment, now time.Time) table {
	t := table{name: "VMs", columns: guestColumns}
	for _, p := range vmStates(s) {
		t.rows = append(t.rows, guestRow(s, p, seen, now))
	}
	return t
}

func guestRow(s *status.Status, p vmState, seen []moment, now time.Time) row {
	name := cell{text: p.Name, tone: alarmed(s, inventory.GuestRef(p.Name))}
	if name.tone != plain {
		name.text = "!" + name.text
	}
	none := cell{text: "-", tone: quiet, order: -1}
	cpu, wait, memory, local, remote := none, none, none, none, none
	if p.sample != nil {
		load := &p.sample.Load
		cpu = cell{text: cpus(load.Demand()), order: load.Demand()}
		share := waitShare(load)
		wait = cell{text: percent(share), order: share, tone: toneOf(share, 0.1, 0.3)}
		memory = cell{
			order: float64(resident(p.sample)),
			draw:  func(w int) string { return byNode(p.sample.MemoryByNode, w) },
		}
		if r := load.Remote; r != nil {
			remote = cell{
				text:  fmt.Sprintf("%s %s", percent(r.Share), label(r.Source)),
				order: r.Share,
				tone:  toneOf(r.Share, 0.1, 0.3),
			}
		}
	}
	if p.LocalShare != nil {
		local = cell{text: percent(*p.LocalShare), order: *p.LocalShare, tone: toneOf(1-*p.LocalShare, 0.1, 0.3)}
	}
	return row{key: p.Name, cells: []cell{
		name,
		{text: text.Set(p.Nodes)},
		{text: fmt.Sprint(p.VCPUs), order: float64(p.VCPUs)},
		cpu, wait, memory, local, remote,
		{text: string(p.Mode), tone: quiet},
		p.state(now),
		{draw: func(w int) string {
			return sparkline(guestTrend(seen, p.Name, w, func(m guestMoment) float64 { return m.demand }),
				float64(p.VCPUs))
		}, tone: busy},
	}}
}

// handedOver is what a mirrored guest has; nil: it hands no CPUs over.
func (p *vmState) handedOver() *inventory.HandedOver {
	if p.sample == nil {
		return nil
	}
	return p.sample.HandedOver
}

// scaled is which vCPUs a guest uses whose number of vCPUs follows its demand; nil: it is none.
func (p *vmState) scaled() *inventory.Scaled {
	if p.sample == nil {
		return nil
	}
	return p.sample.Scaled
}

// state puts the most urgent first: the running move, problems, then conditions
// that prevent a move.
func (p *vmState) state(now time.Time) cell {
	var parts []string
	c := cell{tone: quiet}
	say := func(text string, t tone, order float64) {
		if len(parts) == 0 {
			c.tone, c.order = t, order
		}
		parts = append(parts, text)
	}
	if p.moving != nil {
		say("moving "+percent(doneShare(p.moving)), busy, 6)
	}
	if p.degradation != nil {
		say("degraded "+span(now.Sub(p.degradation.Since)), bad, 5)
	}
	if len(p.Drift) > 0 {
		say("drift", warn, 4)
	}
	if p.advice != nil {
		say("advice", busy, 3)
	}
	if p.blocked != "" {
		say("blocked", quiet, 2)
	}
	if !p.CooldownUntil.IsZero() {
		say("cooldown", quiet, 1)
	}
	if p.State != "running" {
		say(p.State, quiet, 0.5)
	}
	if h := p.handedOver(); h != nil {
		if p.State == "running" && !h.Answers() {
			say("no agent", warn, 3.5)
		}
		say(fmt.Sprintf("has %d of %d", h.CPUs.Len(), p.VCPUs), quiet, 0.2)
	}
	if s := p.scaled(); s != nil && !s.Used.IsEmpty() {
		say(fmt.Sprintf("uses %d of %d", s.Used.Len(), p.VCPUs), quiet, 0.2)
	}
	c.text = strings.Join(parts, ", ")
	c.draw = func(width int) string {
		if ansi.StringWidth(c.text) <= width || len(parts) < 2 {
			return c.text
		}
		return parts[0] + " +"
	}
	return c
}

func label(source inventory.AccessSource) string {
	if l, ok := sourceLabels[source]; ok {
		return l
	}
	return string(source)
}
