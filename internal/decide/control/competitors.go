package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// competition is the state about competitors: others that move pages or change
// bindings of guests.
type competition struct {
	seen []status.Competitor
	// wanted are settings to change, one after the other. changing is the one in
	// progress; restoring says that it restores a former value.
	wanted    []plan.Remedy
	changing  *plan.Remedy
	restoring bool
	tried     map[plan.RemedyKind]competitors.Attempt // the last result, by kind
	excluded  map[int]competitors.Attempt             // whether numad excludes a process, by its id
	// balancing is the value of kernel.numa_balancing before this daemon, or an
	// earlier one that was killed, changed it; empty: no daemon changed it.
	balancing string
	// set is the value that it was changed to, where a journal says so; empty:
	// the one without balancing.
	set string
	// found is that setting when the host was last observed without a running job.
	found string
	// ahead is when kernel balancing was last enabled for moves that were about to be decided, and aheadOf are the
	// guests whose memory was spread then or later.
	ahead   time.Time
	aheadOf map[string]bool
	// loaded is since when guests that are served ahead have been over a threshold; zero: all are below it. needed is
	// when one of them was last over it.
	loaded, needed time.Time
	// grew is when the demand of a guest that is served ahead last grew, or the guest began to work; demands are the
	// highest since then, in CPUs. decided reports that a plan has been made for these demands.
	grew    time.Time
	demands map[string]float64
	decided bool
	// partly reports that some of the guests that are served ahead are idle.
	partly bool
	// brought is when the kernel last brought memory since then, at no less than a part of the highest rate, which is
	// fastest, in bytes a second.
	brought time.Time
	fastest float64
	// served are guests of the last plan to which the kernel has brought memory ahead of it.
	served []string
	// leftOn is when a move that gave way last left kernel balancing on for the next one.
	leftOn time.Time
	// pausedAt is when a move last left kernel balancing on because none of its guests worked any more; zero: the last
	// one that left it on had another reason.
	pausedAt time.Time
	// stirred is when the kernel was last seen to bring memory to vCPUs for moves.
	stirred time.Time
	drifted map[string]time.Time // since when a guest differs from its placement
	// displaced are the CPUs that a guest shares although they are dedicated to others; see share.Displaced.
	displaced map[string]topology.CPUSet
	repairs   map[string]competitors.Attempt // the last repair, by guest
}

func newCompetition() competition {
	return competition{
		tried: map[plan.RemedyKind]competitors.Attempt{}, excluded: map[int]competitors.Attempt{},
		drifted: map[string]time.Time{}, repairs: map[string]competitors.Attempt{},
	}
}

// remember reads the times of repairs from a journal entry.
func (c *competition) remember(e journal.Entry) {
	t := competitors.Attempt{At: e.At}
	switch e.Kind {
	case journal.Repaired:
	case journal.RepairFailed:
		t.Failed = e.What
	default:
		return
	}
	for _, name := range e.Guests {
		c.repairs[name] = t
	}
}

// rememberSettings reads from the journal which setting must be restored.
func (c *competition) rememberSettings(entries []journal.Entry) {
	held := journal.Held(entries, plan.NUMABalancingPath)
	c.balancing, c.set = held.Former, held.Value
}

// forgetGone drops the state of guests that have ended.
func (c *competition) forgetGone(guests []inventory.Guest) {
	pids, names := map[int]bool{}, map[string]bool{}
	for _, g := range guests {
		pids[g.PID], names[g.Name] = true, true
	}
	for pid := range c.excluded {
		if !pids[pid] {
			delete(c.excluded, pid)
		}
	}
	for name := range c.drifted {
		if !names[name] {
			delete(c.drifted, name)
		}
	}
}

// noteDrift records since when guests differ from their placement.
func (c *Controller) noteDrift() {
	drifted := c.competition.drifted
	c.competition.displaced = share.Displaced(&c.host.inventory, c.rules.policy)
	for i := range c.host.inventory.Guests {
		g := &c.host.inventory.Guests[i]
		differences := c.differences(g)
		if len(differences) == 0 {
			delete(drifted, g.Name)
			continue
		}
		if _, known := drifted[g.Name]; !known {
			drifted[g.Name] = c.turn.now
			c.note(journal.Entry{
				Kind: journal.Drifted, Guests: []string{g.Name}, What: strings.Join(differences, "; "),
				Why: c.driftedBecause(g.Name, len(differences)),
			})
		}
	}
}

// differences lists how a guest differs from its placement. It is empty while the
// guest is being moved or its move is interrupted.
func (c *Controller) differences(g *inventory.Guest) []string {
	if g.Placement == nil || len(g.Seen.Threads) == 0 || g.State != "running" || c.onTheMove(g.Name) {
		return nil
	}
	var all []string
	for _, d := range drift.Of(*g, &c.host.inventory.Topology) {
		if c.rest.left[g.Name] && (d.Kind == drift.MemoryLimit || d.Kind == drift.Memory) {
			continue // where its own memory counts, too
		}
		all = append(all, d.String())
	}
	if cpus, is := c.competition.displaced[g.Name]; is {
		all = append(all, fmt.Sprintf("it may run on CPUs %v, which are dedicated to others", cpus))
	}
	return all
}

// driftedBecause says why a guest differs from its placement in a number of ways.
func (c *Controller) driftedBecause(guest string, ways int) string {
	const (
		changed   = "another program or an operator changed it, or its memory moved to other nodes"
		dedicated = "another VM got CPUs of its nodes for itself, or the policy dedicates them now"
	)
	switch _, is := c.competition.displaced[guest]; {
	case !is:
		return changed
	case ways == 1:
		return dedicated
	}
	return changed + "; " + dedicated
}

// answerCompetitors reports the competitors and queues the actions that the
// policy wants.
func (c *Controller) answerCompetitors() {
	seen, remedies := competitors.Answer(c.facts())
	c.noteCompetitors(seen)
	mayRepair := !c.jobs.busy() && c.host.knowledge != outdated && c.held() == ""
	o := &c.competition
	o.wanted = nil
	for _, r := range remedies {
		switch {
		case o.changing != nil && o.changing.Kind == r.Kind && o.changing.PID == r.PID: // in progress
		case r.Kind != plan.BindGuest:
			o.wanted = append(o.wanted, r)
		case mayRepair:
			repair := Job{ID: "repair-" + r.Guest, Kind: RepairJob, Guest: r.Guest, By: Balancer, Why: r.Why}
			c.jobs.queue = append(c.jobs.queue, repair)
			mayRepair = false // one after the other
		}
	}
}

// facts collects the input of competitors.Answer.
func (c *Controller) facts() competitors.Facts {
	o, h, sample := &c.competition, &c.host.inventory, &c.host.sample
	f := competitors.Facts{
		Kernel: h.Kernel, Seen: h.Taken, Moves: sample.Moves, Window: sample.Window, Mode: c.rules.policy.Balance.Mode,
		Movers: c.rules.policy.Movers, Tried: o.tried, Former: o.balancing, Set: o.set, Now: c.turn.now,
		Pulling: c.pulls() || c.pullsAhead() || c.pullsNow(),
	}
	f.Kernel.NUMABalancing = c.ownBalancing()
	if !f.Kernel.NumadRunning {
		clear(o.excluded) // numad forgets its exclusions when it ends
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.State != "running" {
			continue
		}
		r := competitors.Guest{
			Name: g.Name, PID: g.PID, Mode: c.modeOf(g), NumadExcluded: o.excluded[g.PID], Repaired: o.repairs[g.Name],
			LostCPUs: g.Placement != nil && g.Placement.LostCPUs(c.host.inventory.Topology.CPUSet()),
		}
		if _, is := o.displaced[g.Name]; is {
			r.LostCPUs = true
		}
		if since, ok := o.drifted[g.Name]; ok {
			r.Drift, r.Since = c.differences(g), since
		}
		f.Guests = append(f.Guests, r)
	}
	return f
}

// noteCompetitors records competitors that appeared or disappeared.
func (c *Controller) noteCompetitors(seen []status.Competitor) {
	among := func(all []status.Competitor, name string) bool {
		return slices.ContainsFunc(all, func(r status.Competitor) bool { return r.Name == name })
	}
	for _, r := range seen {
		if !among(c.competition.seen, r.Name) {
			c.note(
				journal.Entry{
					Kind: journal.Competitor,
					What: r.Name + ": " + r.What,
					Why:  "answer: " + r.Answer,
					By:   r.Name,
				},
			)
		}
	}
	for _, r := range c.competition.seen {
		if !among(seen, r.Name) {
			c.note(journal.Entry{Kind: journal.Competitor, What: "no longer seen: " + r.Name, By: r.Name})
		}
	}
	c.competition.seen = seen
}

// changeSetting starts the next change that is wanted if none is in progress.
func (c *Controller) changeSetting() {
	if o := &c.competition; o.changing == nil && len(o.wanted) > 0 {
		next := o.wanted[0]
		o.wanted = o.wanted[1:]
		c.startChange(next)
	}
}

func (c *Controller) startChange(r plan.Remedy) {
	c.competition.changing, c.turn.ready.Remedy = &r, &r
}

// settingChanged handles the result of a change.
func (c *Controller) settingChanged(e SettingChanged) {
	o := &c.competition
	if o.changing == nil {
		return
	}
	r, restoring := *o.changing, o.restoring
	o.changing, o.restoring = nil, false
	if restoring {
		c.restored(r, e)
	} else {
		c.changed(r, e)
	}
	switch {
	case !c.turn.stopping:
		c.startJob() // it may have waited for the change
	case !restoring:
		c.finish()
	}
}

// changed handles the result of a change that answers a competitor. operate.Fix
// records changes of settings in the journal. This function records that numad
// excludes a guest, and that a setting could not be restored, unless it failed in
// the same way before.
func (c *Controller) changed(r plan.Remedy, e SettingChanged) {
	o, now := &c.competition, competitors.Attempt{At: c.turn.now, NotBegun: e.NotBegun}
	if e.Err != nil {
		now.Failed = e.Err.Error()
	}
	before := o.tried[r.Kind]
	switch {
	case r.Kind == plan.ExcludeFromNumad:
		before, o.excluded[r.PID] = o.excluded[r.PID], now
	case r.Kind == plan.WriteSetting && r.Value != competitors.Off(r.From): // it answers no competitor
		before = competitors.Attempt{}
	default:
		o.tried[r.Kind] = now
	}
	news := before.Failed != now.Failed
	switch {
	case r.Kind == plan.ExcludeFromNumad && (e.Err == nil || news),
		r.Kind == plan.RestoreSetting && e.Err != nil && news:
		c.noteChange(r, e)
	case r.Kind == plan.WriteSetting && e.Err == nil:
		o.balancing, o.set = e.Former, r.Value
	case r.Kind == plan.RestoreSetting && e.Err == nil:
		o.balancing, o.set = "", ""
		delete(o.tried, plan.WriteSetting) // a later policy may disable it again
	}
	c.logChange(r, e)
	switch {
	case r.Kind == plan.ExcludeFromNumad || e.Err != nil:
	case r.Kind == plan.WriteSetting && r.Path == plan.NUMABalancingPath: // that is all that has changed
		c.host.inventory.Kernel.NUMABalancing = r.Value
	default:
		c.host.wanted = true
	}
}

func (c *Controller) noteChange(r plan.Remedy, e SettingChanged) {
	n := journal.Entry{Kind: journal.Setting, What: e.What, Why: r.Why, By: "daemon"}
	if r.Guest != "" {
		n.Guests = []string{r.Guest}
	}
	if e.Err != nil {
		n.What = "failed: " + n.What + ": " + e.Err.Error()
	}
	c.note(n)
}

func (c *Controller) logChange(r plan.Remedy, e SettingChanged) {
	if e.Err != nil {
		c.log(Warn, "a setting was not changed", "what", e.What, "why", r.Why, "error", e.Err)
		return
	}
	c.log(Info, "a setting was changed", "what", e.What, "why", r.Why)
}

// restoreLeft handles a value of kernel balancing that a killed daemon changed
// and did not restore. If it no longer has that daemon's value, an operator has
// set it since; the remedy then only ends the journal's record, so that the value
// is not overwritten later.
func (c *Controller) restoreLeft(now string) {
	o := &c.competition
	off := competitors.Off(o.balancing)
	if o.balancing != "" && now != "" && (now != off || o.set != off) {
		c.restore("the daemon starts")
	}
}

// restore restores kernel balancing to its former value, also if an earlier daemon
// changed it and was killed. It does not restore KSM: merging across nodes again
// would require unmerging all pages again. It returns false if there is
// nothing to restore.
func (c *Controller) restore(why string) bool {
	if c.competition.balancing == "" {
		return false
	}
	c.competition.restoring = true
	c.startChange(competitors.RestoreBalancing(c.competition.balancing, c.competition.set, why))
	return true
}

// restored handles the result of restore.
func (c *Controller) restored(r plan.Remedy, e SettingChanged) {
	c.logChange(r, e)
	if e.Err == nil {
		c.competition.balancing, c.competition.set = "", ""
	}
	switch {
	case !c.turn.stopping:
	case r.Why == stopWhy || e.Err == nil:
		c.end()
	default:
		c.finish()
	}
}

// repaired handles the result of a repair. A repair that a pause stopped is made
// after the pause. It is not recorded, because a recorded repair would make the
// guest's next change count as deliberate.
func (c *Controller) repaired(j Job, e JobEnded) {
	if e.Stopped {
		c.log(Info, "a repair was interrupted", "guest", j.Guest)
		return
	}
	n := journal.Entry{
		Kind: journal.Repaired, Guests: []string{j.Guest}, By: string(Balancer), Why: j.Why,
		What: "bound to its placement again",
	}
	switch {
	case e.Err != nil:
		n.Kind, n.What = journal.RepairFailed, "could not be bound to its placement again: "+e.Err.Error()
	case len(e.Shortfalls) > 0:
		n.What, n.Shortfalls = "bound to its placement again in part", e.Shortfalls
	}
	if n.Kind == journal.Repaired {
		c.totals.Repairs++
	}
	if n.Kind == journal.Repaired && len(n.Shortfalls) == 0 { // the next observation shows whether it has changed again
		delete(c.competition.drifted, j.Guest)
	}
	if n.Kind == journal.Repaired ||
		c.competition.repairs[j.Guest].Failed != n.What { // the same failure again is no news
		c.note(n)
	}
	n.At = c.turn.now
	c.competition.remember(n)
}
