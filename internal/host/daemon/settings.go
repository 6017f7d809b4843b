package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/journal"
)

// change is a setting of others on its way. It runs beside the loop: numad may
// not answer, and KSM takes minutes to unmerge what it merged.
type change struct {
	competitors.Action
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended; what follows is set then
	before string        // what kernel.numa_balancing was
	kept   bool          // the journal has it
	after  string        // what kernel.numa_balancing is left at, where it is not given back
	err    error
}

// balancing names, in the journal, the setting that is given back.
const balancing = "kernel.numa_balancing"

// errNotBegun means that a setting was not touched.
var errNotBegun = errors.New("not begun")

// change begins the next change that is wanted where none is on its way.
func (s *state) change(ctx context.Context) {
	if s.changing != nil || len(s.changes) == 0 {
		return
	}
	c := &change{Action: s.changes[0], done: make(chan struct{})}
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
	switch c.Kind {
	case competitors.Exclude:
		ctx, cancel := context.WithTimeout(ctx, tellTime)
		defer cancel()
		c.err = d.Settings.ExcludeFromNumad(ctx, c.PID)
	case competitors.StopBalancing:
		c.err = c.stopBalancing(d)
	case competitors.GiveBack:
		c.after, c.err = giveBack(d.Settings, c.Value)
	case competitors.KSMWithin:
		c.err = d.ahead(journal.Entry{What: "KSM, which merges across nodes (run 1, merge_across_nodes 1), is about to be unmerged, to merge within nodes only", Why: c.Why})
		if c.err == nil {
			c.err = d.Settings.SetKSMAcrossNodes(false)
		}
	}
}

func (c *change) stopBalancing(d *Daemon) (err error) {
	if c.before, err = d.Settings.NUMABalancing(); err != nil {
		return fmt.Errorf("%w: %w", errNotBegun, err)
	}
	if competitors.Off(c.before) != c.Value {
		return fmt.Errorf("%w: it is %s by now", errNotBegun, c.before)
	}
	err = d.ahead(journal.Entry{ID: balancing, Former: c.before, Why: c.Why, What: fmt.Sprintf("%s: is %s, is about to be %s", balancing, c.before, c.Value)})
	if err != nil {
		return err
	}
	c.kept = true
	return d.Settings.SetNUMABalancing(c.Value)
}

// ahead writes down what is about to be changed. What cannot be written down is
// not to be changed: after kill -9 nobody would know what it was.
func (d *Daemon) ahead(e journal.Entry) error {
	e.At, e.Kind, e.By = time.Now(), journal.Setting, "daemon"
	d.Log.Info(string(e.Kind), "what", e.What, "why", e.Why)
	if err := d.Journal.Append(e); err != nil {
		return fmt.Errorf("%w, for the journal cannot keep what it was: %w", errNotBegun, err)
	}
	return nil
}

// giveBack sets kernel balancing to what it was before it was switched off. Where
// it is not off as we left it, somebody else has set it since, or it was never
// switched off: it is left as it is then, and that is returned.
func giveBack(on Settings, former string) (left string, err error) {
	now, err := on.NUMABalancing()
	if err != nil {
		return "", err
	}
	if now != competitors.Off(former) {
		return now, nil
	}
	return "", on.SetNUMABalancing(former)
}

// givenBack says what came of giveBack.
func givenBack(former, left string) string {
	if left != "" {
		return fmt.Sprintf("%s: left at %s, for it is not off as the daemon sets it; it was %s before", balancing, left, former)
	}
	return balancing + ": back to " + former
}

// changed takes down what came of a change, once.
func (s *state) changed(c *change) {
	if s.changing != c {
		return
	}
	c.cancel()
	s.changing = nil
	now, before := competitors.Tried{At: time.Now()}, competitors.Tried{}
	if c.err != nil {
		now.Failed, now.NotBegun = c.err.Error(), errors.Is(c.err, errNotBegun)
	}
	e := journal.Entry{Why: c.Why}
	switch c.Kind {
	case competitors.Exclude:
		before, s.told[c.PID] = s.told[c.PID], now
		e.What = fmt.Sprintf("numad told to leave alone guest %s (numad -x %d)", c.Guest, c.PID)
	case competitors.StopBalancing:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = fmt.Sprintf("%s: was %s, is %s", balancing, c.before, c.Value)
		if c.kept { // where it failed, this ends what the journal has
			e.ID, s.balancing = balancing, ""
			if c.err == nil {
				e.Former, s.balancing = c.before, c.before
			}
		}
	case competitors.GiveBack:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = givenBack(c.Value, c.after)
		if c.err == nil {
			s.balancing, e.ID = "", balancing
			delete(s.tried, competitors.StopBalancing) // a later policy may want it off again
		}
	case competitors.KSMWithin:
		before, s.tried[c.Kind] = s.tried[c.Kind], now
		e.What = "KSM merges within nodes only: was across nodes"
	}
	if c.err == nil || c.kept || before.Failed != now.Failed { // the same failure again is no news
		s.noteSetting(e, c.err)
	}
	if c.Kind != competitors.Exclude && c.err == nil {
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
	left, err := giveBack(s.d.Settings, s.balancing)
	e := journal.Entry{ID: balancing, What: givenBack(s.balancing, left), Why: "the daemon stops"}
	if err != nil {
		e.Former = s.balancing // the next one tries again
	}
	s.noteSetting(e, err)
}

// dropFormer forgets what a daemon before this one wrote down and, being killed,
// did not change; or what somebody has changed back since. To give that back
// would undo what others do in the meantime.
func (s *state) dropFormer() {
	if s.balancing == "" {
		return
	}
	now, err := s.d.Settings.NUMABalancing()
	if err != nil || now == competitors.Off(s.balancing) {
		return
	}
	s.noteSetting(journal.Entry{ID: balancing, What: givenBack(s.balancing, now), Why: "found so at the start"}, nil)
	s.balancing = ""
}
