package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/rivals"
	"github.com/numavisor/numavisor/internal/journal"
)

// change is a setting of others on its way. It runs beside the loop: numad may
// not answer, and KSM takes minutes to unmerge what it merged.
type change struct {
	rivals.Action
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended; what follows is set then
	before string        // what kernel.numa_balancing was
	err    error
}

// balancing names, in the journal, the setting that is given back.
const balancing = "kernel.numa_balancing"

// change begins the next change that is wanted where none is on its way.
func (s *state) change(ctx context.Context) {
	if s.changing != nil || len(s.changes) == 0 {
		return
	}
	c := &change{Action: s.changes[0], done: make(chan struct{})}
	s.changes, s.changing = s.changes[1:], c
	ctx, c.cancel = context.WithCancel(ctx)
	s.d.beside(ctx, func() func(*state) {
		c.make(ctx, s.d.Settings)
		return func(s *state) { s.changed(c) }
	})
}

// make carries a change out. Only telling numad can be cut short: KSM that is
// stopped in mid-unmerging would stay stopped.
func (c *change) make(ctx context.Context, on Settings) {
	defer close(c.done)
	switch c.Kind {
	case rivals.Exclude:
		ctx, cancel := context.WithTimeout(ctx, tellTime)
		defer cancel()
		c.err = on.ExcludeFromNumad(ctx, c.PID)
	case rivals.StopBalancing:
		c.before, c.err = on.SetNUMABalancing(c.Value)
	case rivals.GiveBack:
		_, c.err = on.SetNUMABalancing(c.Value)
	case rivals.KSMWithin:
		c.err = on.SetKSMAcrossNodes(false)
	}
}

// changed takes down what came of a change, once.
func (s *state) changed(c *change) {
	if s.changing != c {
		return
	}
	c.cancel()
	s.changing = nil
	now, before := rivals.Tried{At: time.Now()}, rivals.Tried{}
	if c.err != nil {
		now.Failed = c.err.Error()
	}
	e := journal.Entry{Why: c.Why}
	switch c.Kind {
	case rivals.Exclude:
		before, s.told[c.PID] = s.told[c.PID], now
		e.What = fmt.Sprintf("numad told to leave alone guest %s (numad -x %d)", c.Guest, c.PID)
	case rivals.StopBalancing:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = fmt.Sprintf("%s: was %s, is %s", balancing, c.before, c.Value)
		if c.err == nil {
			s.balancing = c.before
			e.ID, e.Former = balancing, c.before
		}
	case rivals.GiveBack:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = fmt.Sprintf("%s: back to %s", balancing, c.Value)
		if c.err == nil {
			s.balancing, e.ID = "", balancing
			delete(s.tried, rivals.StopBalancing) // a later policy may want it off again
		}
	case rivals.KSMWithin:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = "KSM merges within nodes only: was across nodes"
	}
	if c.err == nil || before.Failed != now.Failed { // the same failure again is no news
		s.noteSetting(e, c.err)
	}
	if c.Kind != rivals.Exclude && c.err == nil {
		s.lookSoon()
	}
}

func (s *state) noteSetting(e journal.Entry, err error) {
	e.Kind, e.By = journal.Setting, "daemon"
	if err != nil {
		e.What = "tried, and failed: " + e.What + ": " + err.Error()
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
func (s *state) restore() {
	if s.balancing == "" {
		return
	}
	_, err := s.d.Settings.SetNUMABalancing(s.balancing)
	e := journal.Entry{ID: balancing, What: balancing + ": back to " + s.balancing, Why: "the daemon stops"}
	if err != nil {
		e.Former = s.balancing // the next one tries again
	}
	s.noteSetting(e, err)
}
