package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// pullEvery is the time between two readings of where the memory is. The kernel brings memory where copying
// is slow, and there the readings are slow, too: in the lab one a second took a tenth of the daemon's CPU
// time until VMs had settled.
// It is read more often when only the last pages are elsewhere: kernel balancing costs all VMs of the host hinting
// faults as long as it is on.
const pullEvery, tailEvery = 2 * time.Second, time.Second

// pulling is what Request.Pull needs to know of the move.
type pulling struct {
	guests []*moving // whose memory the kernel can bring to their vCPUs
	// exposed are guests outside the move that forbid it: kernel balancing could
	// move their memory, too.
	exposed []string
	// held is the setting that could not be restored, or stays for memory that is not in use.
	held *journal.SettingChange
}

// canPull notes which guests' memory the kernel can bring to their vCPUs.
func (m *mover) canPull(inv *inventory.Host) {
	m.pulling = pulling{}
	balancing, err := strconv.Atoi(inv.Kernel.NUMABalancing)
	p := &m.host.Policy
	if !m.Pull || err != nil || balancing < 0 || p.Movers.KernelBalancing == policy.AnswerOff {
		return
	}
	ours := map[string]bool{}
	pulls := make([]order.Pull, len(m.guests))
	for i, g := range m.guests {
		ours[g.Guest] = true
		pulls[i] = order.PullOf(&g.seen, g.GuestMove, &inv.Topology)
	}
	order.Level(pulls)
	for i, g := range m.guests {
		g.pull = pulls[i]
	}
	m.pulling.exposed = order.Exposed(inv, func(name string) bool {
		return ours[name] || slices.Contains(m.Idle, name)
	})
	for _, g := range m.order {
		if !g.cold && g.pull.Possible(p.Balance) {
			m.pulling.guests = append(m.pulling.guests, g)
		}
	}
}

// errTried ends the trial of our own copy.
var errTried = errors.New("the rate is known")

// trialSlice is how much our own copy copies to show its rate: two transparent huge
// pages, some milliseconds for a thread with a CPU of its own. The VMs of the move wait
// for the trial far from their memory.
const trialSlice = 4 * topology.MiB

// trial is a pacer that ends copying once a slice has shown the rate.
type trial struct {
	copied topology.Bytes
	took   time.Duration
}

func (t *trial) Next(ctx context.Context) (topology.Bytes, error) {
	if t.copied > 0 {
		return 0, errTried
	}
	return trialSlice, ctx.Err()
}

func (t *trial) Copied(bytes topology.Bytes, took time.Duration) {
	t.copied, t.took = t.copied+bytes, t.took+took
}

// rate is in bytes a second; 0: too fast to be measured, or nothing was copied.
func (t *trial) rate() topology.Bytes {
	if t.took <= 0 {
		return 0
	}
	return topology.Bytes(float64(t.copied) / t.took.Seconds())
}

// mayPull reports whether the kernel may bring memory of guests of the move to their vCPUs.
func (m *mover) mayPull() bool {
	return m.refused() == nil && len(m.pulling.exposed) == 0 &&
		slices.ContainsFunc(m.pulling.guests, func(g *moving) bool { return g.err == nil })
}

// urgently divides the steps before copying: those that allow nodes and move vCPUs, without which the
// kernel brings nothing, and those that can be carried out while it does.
func urgently(before []plan.Step) (urgent, later []plan.Step) {
	waits := func(s plan.Step) bool {
		return s.Kind == plan.Record || s.Kind == plan.PinHelper || s.Kind == plan.PinIO
	}
	for _, s := range before {
		if waits(s) {
			later = append(later, s)
		} else {
			urgent = append(urgent, s)
		}
	}
	return urgent, later
}

// pull is memory that the kernel brings to the vCPUs of guests.
type pull struct {
	guests  []*watched
	rate    topology.Bytes // of our own copy, a second
	began   time.Duration
	restore func() error
	held    *journal.SettingChange // the setting that restore restores; nil: it was on already
	// unused are guests that do not use much of their memory now, and kernel balancing stays on for it.
	unused []*watched
	// pauses: none of the guests works any more, and kernel balancing stays on for a pause of theirs.
	pauses bool
}

// beginPull lets the kernel bring memory to the vCPUs of the guests for which that is
// the better mover. A first slice shows how fast copying is. nil: all memory is copied. The error is
// the end of the context.
func (m *mover) beginPull(ctx context.Context, x apply.Executor) (*pull, error) {
	if exposed := m.pulling.exposed; len(m.pulling.guests) > 0 && len(exposed) > 0 {
		m.note("memory is copied: kernel balancing could also move that of VM " + strings.Join(exposed, ", "))
	}
	if !m.mayPull() {
		return nil, nil //nolint:nilnil // no pull is no error
	}
	rate, guests, err := m.pulls(ctx, x)
	if err != nil || len(guests) == 0 {
		return nil, err
	}
	well := func(g *moving) bool { return g.err == nil }
	for _, g := range guests {
		if len(g.pins) > 0 {
			m.moveVCPUs(ctx, x, g)
		}
	}
	if guests = where(guests, well); len(guests) == 0 {
		return nil, nil //nolint:nilnil // no pull is no error
	}
	p := &pull{rate: rate, began: m.elapsed()}
	for _, g := range guests {
		w := &watched{moving: g, left: g.pull.Bytes, read: p.began, faults: m.hintFaults(g)}
		if now, ok := m.misplaced(g); ok && now > g.pull.Bytes {
			w.stays = now - g.pull.Bytes
		}
		p.guests = append(p.guests, w)
	}
	if p.held, p.restore, err = m.balance(ctx); err != nil {
		m.note("memory is copied: kernel balancing cannot be enabled: " + err.Error())
		return nil, nil //nolint:nilerr,nilnil // noted; all memory is copied instead
	}
	return p, nil
}

// pulls returns the guests whose memory the kernel is to bring, and how fast our own copy is, in bytes a second.
// Where the kernel is the better mover even if our own copy is as fast as it can be, that is not measured.
func (m *mover) pulls(ctx context.Context, x apply.Executor) (rate topology.Bytes, guests []*moving, err error) {
	pays := func() bool {
		guests = where(m.pulling.guests, func(g *moving) bool { return g.err == nil })
		var pulls []order.Pull
		for _, g := range guests {
			done, all := g.turn.Done()
			g.pull.Bytes = all - done
			pulls = append(pulls, g.pull)
		}
		return order.Pays(pulls, rate)
	}
	if rate = m.CopyRate; pays() {
		return rate, guests, nil
	}
	t := &trial{}
	if err := m.copyAll(ctx, x, t); err != nil && !errors.Is(err, errTried) {
		return 0, nil, err
	}
	if rate = t.rate(); pays() {
		return rate, guests, nil
	}
	if rate > 0 {
		m.note(fmt.Sprintf("memory is copied: at %v a second that is better than kernel balancing", rate))
	}
	return rate, nil, nil
}

// where returns the guests of which something is true.
func where(guests []*moving, is func(*moving) bool) []*moving {
	return slices.DeleteFunc(slices.Clone(guests), func(g *moving) bool { return !is(g) })
}

// endPull waits until the kernel has brought the memory, or is slower than copying, and restores kernel
// balancing, unless it is to bring what the guests do not use now. The error is the end of the context, or errGivesWay:
// then kernel balancing stays on.
func (m *mover) endPull(ctx context.Context, x apply.Executor, p *pull) error {
	if p == nil {
		return nil
	}
	var err error
	if m.refused() == nil {
		err = m.watchPull(ctx, x, p)
	}
	switch {
	case len(p.unused) > 0 && err == nil:
		m.note("kernel balancing stays on for memory that is not in use: " + left(p.unused))
		m.pulling.held = p.held
		return nil
	case p.pauses && p.held != nil && err == nil:
		m.note("kernel balancing stays on for a while: no VM of the move works now")
		m.pulling.held, m.moved.Pauses = p.held, true
		return nil
	case errors.Is(err, errGivesWay) && p.held != nil: // the next move takes it over
		m.pulling.held = p.held
		return err
	}
	if failed := p.restore(); failed != nil {
		m.unrecorded = errors.Join(m.unrecorded, failed)
	}
	return err
}

// balance enables kernel balancing, unless it is, and returns how to restore it.
// The setting is in the journal as one that the daemon holds: after a kill, its
// start restores the former value.
func (m *mover) balance(ctx context.Context) (held *journal.SettingChange, restore func() error, err error) {
	now, err := m.host.Settings.ReadSetting(plan.NUMABalancingPath)
	if err != nil {
		return nil, nil, err
	}
	if m.Held != nil && now == m.Held.Value {
		return m.Held, m.restorer(ctx, m.Held), nil
	}
	mode, err := strconv.Atoi(now)
	if err != nil || mode&1 == 1 {
		return nil, func() error { return nil }, err
	}
	on := strconv.Itoa(mode | 1)
	held = &journal.SettingChange{Path: plan.NUMABalancingPath, Former: now, Value: on, Held: true}
	_, err = m.host.Fix(ctx, operate.FixRequest{Held: true, Remedy: plan.Remedy{
		Kind: plan.WriteSetting, Path: plan.NUMABalancingPath, From: now, Value: on,
		Why: "the kernel brings memory to the vCPUs, for move " + m.ID}})
	back := m.restorer(ctx, held)
	if err != nil { // it may have been changed: only its entry in the journal may have failed
		return nil, nil, errors.Join(err, back())
	}
	return held, back, nil
}

// restorer returns the function that restores kernel balancing, also if ctx has ended.
func (m *mover) restorer(ctx context.Context, held *journal.SettingChange) func() error {
	return func() error {
		_, err := m.host.Fix(context.WithoutCancel(ctx), operate.FixRequest{Remedy: plan.Remedy{
			Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: held.Value, Value: held.Former,
			Why: "the kernel has brought memory to the vCPUs, for move " + m.ID}})
		if err != nil {
			m.pulling.held = held
		} else {
			m.moved.Held = nil
		}
		return err
	}
}

// endHeld restores kernel balancing that the caller has enabled, as this program copies the memory.
func (m *mover) endHeld(ctx context.Context) {
	if m.moved.Held == nil {
		return
	}
	if err := m.restorer(ctx, m.moved.Held)(); err != nil {
		m.unrecorded = errors.Join(m.unrecorded, err)
	}
}

// watched is a guest whose memory the kernel brings.
type watched struct {
	*moving
	left  topology.Bytes // to be brought
	stays topology.Bytes // memory of its process, which is not copied
	read  time.Duration  // when left was last read
	// faults is what kernel balancing had recorded about the guest when the pull began; nil: not known.
	faults *inventory.HintFaults
	// untouched: the guest does not use what is left.
	untouched bool
}

// hintFaults returns what kernel balancing has recorded about a guest; nil: not known.
func (m *mover) hintFaults(g *moving) *inventory.HintFaults {
	faults, err := m.host.Sources.Kernel.HintFaults(g.seen.PID)
	if err != nil {
		return nil // not every kernel records it
	}
	return &faults
}

// findUntouched notes which guests do not use what the kernel has left of their memory, and reports whether that is
// all that is left.
func (m *mover) findUntouched(p *pull, state *order.Pulling) bool {
	var used topology.Bytes
	for _, g := range p.guests {
		now := (*inventory.HintFaults)(nil)
		if g.faults != nil {
			now = m.hintFaults(g.moving)
		}
		g.untouched = now != nil && state.Untouched(*g.faults, *now, g.Placement.Nodes, g.left)
		if !g.untouched {
			used += g.left
		}
	}
	_, of := p.remains()
	return order.Brought(used, of)
}

// watchPull waits until the kernel has brought the memory, or is slower than
// copying would be. What it leaves of a guest waits for a quiet time if it is little, or so much
// that the guest works without it, or if the guest hardly works any more. Else it is copied. If the move is to give
// way, it ends before the last pages, or some seconds later: the vCPUs are at their targets, and the kernel brings
// memory without it.
func (m *mover) watchPull(ctx context.Context, x apply.Executor, p *pull) error {
	var state order.Pulling
	yielding := m.yielding()
	for {
		every, most := pullEvery, time.Duration(0)
		if order.LastPages(p.remains()) {
			every, most = tailEvery, grace
		}
		if err := yielding.sleep(ctx, every); err != nil {
			return err
		}
		// A guest that has ended, or whose memory cannot be read, delays no other one.
		p.guests = slices.DeleteFunc(p.guests, func(g *watched) bool { return !m.brought(g) })
		m.tell("the kernel brings memory to the vCPUs", 0)
		if yielding.passed(most) {
			return errGivesWay
		}
		pause := m.allPause()
		if m.allIdle(p.guests) { // the kernel brings memory that is used
			p.pauses = pause && !order.LastPages(p.remains())
			break
		}
		goesOn := func() bool {
			left, of := p.remains()
			return state.Continue(m.elapsed()-p.began, left, of, p.rate)
		}
		if goesOn() {
			continue
		}
		if !state.Slower() || m.findUntouched(p, &state) {
			break
		}
		if err := m.measureAgain(ctx, x, p); err != nil {
			return err
		}
		if !goesOn() {
			m.note(fmt.Sprintf("memory is copied: at %v a second that is faster than kernel balancing now", p.rate))
			break
		}
	}
	m.leaveIdle()
	for _, g := range p.guests {
		if g.partly {
			continue
		}
		all := g.seen.Seen.MemoryByNode.Total()
		unused := (state.Ebbed() || g.untouched) && order.Unused(g.left+g.stays, all)
		if m.Later && (unused || order.Cold(g.left+g.stays, all)) {
			g.turn.Leave()
			g.moving.left, g.cold = true, true
			if unused && p.held != nil {
				p.unused = append(p.unused, g)
			}
		}
	}
	return nil
}

// remains returns how much memory is still to be brought, and of how much.
func (p *pull) remains() (left, of topology.Bytes) {
	for _, g := range p.guests {
		left, of = left+g.left, of+g.pull.Bytes
	}
	return left, of
}

// measureAgain copies a slice to measure the rate of our own copy while the guests work.
func (m *mover) measureAgain(ctx context.Context, x apply.Executor, p *pull) error {
	t := &trial{}
	if err := m.copyAll(ctx, x, t); err != nil && !errors.Is(err, errTried) {
		return err
	}
	p.rate = t.rate()
	for _, g := range p.guests {
		if now, ok := m.misplaced(g.moving); ok {
			g.left = min(now-min(now, g.stays), g.left) // not all of it was brought by the kernel
		}
	}
	return nil
}

// left says how much the kernel has left of each guest's memory.
func left(guests []*watched) string {
	all := make([]string, len(guests))
	for i, g := range guests {
		all[i] = fmt.Sprintf("%v of VM %s", g.left, g.Guest)
	}
	return strings.Join(all, ", ")
}

// brought counts what the kernel has brought of a guest's memory since it was last
// read, and reports whether that could be read.
func (m *mover) brought(g *watched) bool {
	from := g.read
	now, ok := m.misplaced(g.moving)
	if !ok {
		return false
	}
	now = min(now-min(now, g.stays), g.left)
	g.read = m.elapsed()
	m.trace.Add(g.Guest, journal.TracePull, from, g.read, g.left-now)
	m.moved.Pulled += g.left - now
	g.left = now
	return true
}

// misplaced is how much of a guest's memory is not on its nodes.
func (m *mover) misplaced(g *moving) (sum topology.Bytes, ok bool) {
	byNode, _, err := m.host.Sources.Kernel.Memory(g.seen)
	if err != nil {
		return 0, false
	}
	for node, bytes := range byNode {
		if !g.Placement.Nodes.Contains(node) {
			sum += bytes
		}
	}
	return sum, true
}
