package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// closely is what has been read of guests shortly before they may move: their mappings. The kernel walks all memory
// of a guest to show them, which takes longer than to decide, so they are read while degraded_for passes.
type closely struct {
	reading   bool
	overtaken bool      // a job began or ended while it was read
	began     time.Time // when the latest reading began that counts, or is in progress
	took      time.Duration
	guests    []inventory.Guest
}

// closelyFor is how long a reading counts: less than most copies take, during which mappings change, too. Guests often
// use CPUs for a moment before they begin to work. While the kernel brings memory to vCPUs, it is closelyDrifting.
const closelyFor, closelyDrifting = 15 * time.Second, 5 * time.Second

// counts returns how long a reading counts, from its beginning: at least twice the time that it took. Another reading
// would take as long, and be as old when it ends.
func (r *closely) counts(drifts bool) time.Duration {
	if drifts {
		return max(closelyDrifting, 2*r.took)
	}
	return max(closelyFor, 2*r.took)
}

// ReadClosely asks for the mappings of guests. It is answered with CloselyRead.
type ReadClosely struct {
	Host   inventory.Host // as last observed
	Guests []string
}

// readClosely asks for the mappings of guests that the daemon is likely to move soon: degraded guests reach
// degraded_for before the next sample, and a plan would move these if they had reached it.
func (c *Controller) readClosely() {
	r := &c.closely
	if c.State() != Idle || c.servesAhead() || r.reading || c.turn.now.Sub(r.began) <= r.counts(false) {
		return
	}
	known, names := c.known(), []string(nil)
	if known != nil {
		names = c.movesSoon()
	}
	if len(names) == 0 {
		return
	}
	r.reading, r.overtaken, r.began = true, false, c.turn.now
	c.turn.ready.ReadClosely = &ReadClosely{Host: *known, Guests: names}
}

// movesSoon returns the guests that a plan would move if the guests that reach degraded_for before the next sample had
// reached it, and these guests: with the loads of the next sample, it may move them, too. None if it moves none.
// A guest whose load is not known yet may have worked for long: it counts as one of them if degraded_for is that
// short.
func (c *Controller) movesSoon() (names []string) {
	degradedFor, moment := c.degradedFor(), c.moment()
	degraded := slices.Clone(c.when.plan.Degraded)
	var soon []string
	for i := range degraded {
		d := &degraded[i]
		if left := d.Since.Add(degradedFor).Sub(moment); left > 0 && left <= c.options.Sample {
			d.Since, soon = moment.Add(-degradedFor), append(soon, d.Guest)
		}
	}
	if degradedFor <= c.options.Sample {
		for name := range c.host.fresh {
			degraded = append(degraded, plan.Degraded{Guest: name, Since: moment.Add(-degradedFor)})
			soon = append(soon, name)
		}
	}
	if len(soon) == 0 {
		return nil
	}
	slices.Sort(soon)
	h, _ := c.Inventory(c.turn.now)
	r := c.request(&h)
	r.Past.Degraded, r.Past.Unmeasured = degraded, nil
	p, err := balance.Plan(r)
	if err != nil {
		return nil // the plan itself will show why
	}
	_, made := c.divide(p.Moves)
	if len(made) == 0 {
		return nil
	}
	for _, m := range made {
		names = append(names, m.Names()...)
	}
	for _, name := range soon {
		if g, ok := h.Guest(name); ok && c.modeOf(g) == policy.ModeAuto && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		g, ok := h.Guest(name)
		return !ok || g.PID <= 0
	})
}

// guestClosely returns what has been read of a guest, if that still counts.
func (c *Controller) guestClosely(name string) *inventory.Guest {
	r := &c.closely
	if c.turn.now.Sub(r.began) > r.counts(c.drifts()) {
		return nil
	}
	for i := range r.guests {
		if r.guests[i].Name == name {
			return &r.guests[i]
		}
	}
	return nil
}

// closelyRead takes what has been read. Without it, a move reads its guests itself.
func (c *Controller) closelyRead(e CloselyRead) {
	r := &c.closely
	r.reading, r.guests, r.took = false, e.Guests, c.turn.now.Sub(r.began)
	if r.overtaken {
		r.forget()
	}
	if !c.turn.stopping {
		c.startJob()
	}
	c.turn.ready.SampleIn = c.soon()
}

// awaited reports whether a job waits for the reading: a move would read the same.
func (r *closely) awaited() bool { return r.reading && !r.overtaken }

// forget drops what has been read, as a job begins or has ended. Guests may be read again at once.
func (r *closely) forget() {
	r.overtaken, r.guests = true, nil
	if !r.reading {
		r.began = time.Time{}
	}
}

// withClosely adds the mappings that have been read to what is known of the host.
func (c *Controller) withClosely(h *inventory.Host) {
	for i := range h.Guests {
		g := &h.Guests[i]
		if read := c.guestClosely(g.Name); read != nil && read.PID == g.PID {
			g.Seen.Ranges = read.Seen.Ranges
		}
	}
}
