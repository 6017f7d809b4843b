package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// change is a setting of others on its way. It runs beside the loop: numad may
// not answer, and KSM takes minutes to unmerge what it merged.
type change struct {
	plan.Remedy
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended; what follows is set then
	fixed  operate.Fixed
	err    error
}

// change begins the next change that is wanted where none is on its way.
func (s *state) change(ctx context.Context) {
	if s.changing != nil || len(s.changes) == 0 {
		return
	}
	c := &change{Remedy: s.changes[0], done: make(chan struct{})}
	s.changes, s.changing = s.changes[1:], c
	ctx, c.cancel = context.WithCancel(ctx)
	s.d.beside(ctx, func() func(*state) {
		c.make(ctx, s.d)
		return func(s *state) { s.changed(c) }
	})
}

// make carries a change out. Only telling numad can be cut short: KSM that is
// stopped in mid-unmerging would stay stopped.
func (c *change) make(ctx context.Context, d *Daemon) {
	defer close(c.done)
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	c.fixed, c.err = d.Host.Fix(ctx, operate.FixRequest{Remedy: c.Remedy, Held: c.Kind == plan.WriteSetting})
}

// changed takes down what came of a change, once.
func (s *state) changed(c *change) {
	if s.changing != c {
		return
	}
	c.cancel()
	s.changing = nil
	now := competitors.Tried{At: time.Now()}
	if c.err != nil {
		now.Failed, now.NotBegun = c.err.Error(), errors.Is(c.err, operate.ErrNotBegun)
	}
	before := s.tried[c.Kind]
	if c.Kind == plan.ExcludeFromNumad {
		before, s.told[c.PID] = s.told[c.PID], now
	} else {
		s.tried[c.Kind] = now
	}
	news := before.Failed != now.Failed
	switch {
	case c.Kind == plan.ExcludeFromNumad && (c.err == nil || news), c.Kind == plan.RestoreSetting && c.err != nil && news:
		s.noteFix(c)
	case c.Kind == plan.WriteSetting && c.err == nil:
		s.balancing = c.fixed.Former
	case c.Kind == plan.RestoreSetting && c.err == nil:
		s.balancing = ""
		delete(s.tried, plan.WriteSetting) // a later policy may want it off again
	}
	s.logFix(c.fixed, c.Why, c.err)
	if c.Kind != plan.ExcludeFromNumad && c.err == nil {
		s.lookSoon()
	}
}

// logFix logs a change of a setting; operate.Fix has put it into the journal.
func (s *state) logFix(f operate.Fixed, why string, err error) {
	if err != nil {
		s.d.Log.Warn("a setting was not changed", "what", f.What, "why", why, "error", err)
		return
	}
	s.d.Log.Info("a setting was changed", "what", f.What, "why", why)
}

// noteFix puts into the journal what operate.Fix does not: whether numad
// excludes a guest, and that a setting could not be restored.
func (s *state) noteFix(c *change) {
	e := journal.Entry{Kind: journal.Setting, What: c.fixed.What, Why: c.Why, By: s.d.Host.By}
	if c.Guest != "" {
		e.Guests = []string{c.Guest}
	}
	if c.err != nil {
		e.What = "failed: " + e.What + ": " + c.err.Error()
	}
	s.note(e)
}

// settle waits until no change is on its way any more: what it has changed is
// known then, and can be given back.
func (s *state) settle() {
	s.changes = nil
	c := s.changing
	if c == nil {
		return
	}
	c.cancel()
	s.d.Log.Info("waits for a setting on its way", "change", c.Kind, "guest", c.Guest)
	<-c.done
	s.changed(c)
}

// restore gives kernel balancing back as it was, also where a daemon before this
// one changed it and was killed. KSM stays within nodes: to merge across them
// again would cost the same unmerging once more.
func (s *state) restore(why string) {
	if s.balancing == "" {
		return
	}
	f, err := s.d.Host.Fix(context.Background(), operate.FixRequest{Remedy: competitors.GiveBack(s.balancing, why)})
	s.logFix(f, why, err)
	if err == nil {
		s.balancing = ""
	}
}

// dropFormer forgets what a daemon before this one wrote down and, being killed,
// did not change; or what somebody has changed back since. To give that back
// would undo what others do in the meantime.
func (s *state) dropFormer() {
	if s.balancing == "" {
		return
	}
	now, err := s.d.Host.Settings.ReadSetting(plan.NUMABalancingPath)
	if err != nil || now == competitors.Off(s.balancing) {
		return
	}
	s.restore("the daemon starts")
}
