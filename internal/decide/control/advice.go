package control

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
)

// advice is the list of worthwhile moves that the mode, a pause or the maintenance
// windows do not allow.
type advice struct {
	current []status.Advice
	noted   map[string]time.Time // when it was last recorded in the journal, by id
}

// advisedFor is how long repeated advice is not recorded in the journal again.
// With fluctuating loads the same advice may appear and disappear with every plan.
const advisedFor = time.Hour

func (a *advice) remember(e journal.Entry) {
	if e.Kind == journal.Advised {
		a.noted[e.ID] = e.At
	}
}

// advise offers moves to the operator. A move offered before keeps its id and age;
// a move that no longer pays is withdrawn.
func (c *Controller) advise(moves []plan.Move) {
	a, now := &c.advice, c.turn.now
	known := map[string]time.Time{}
	for _, old := range a.current {
		known[old.ID] = old.Since
	}
	a.current = nil
	for _, m := range moves {
		offer := status.Advice{ID: adviceID(m), Since: now, Move: m}
		since, ok := known[offer.ID]
		if ok {
			offer.Since = since
		}
		if !ok && now.Sub(a.noted[offer.ID]) >= advisedFor {
			a.noted[offer.ID] = now
			c.note(journal.Entry{
				Kind: journal.Advised, ID: offer.ID, Guests: m.Names(), What: m.String(), Why: m.Why,
				By: string(Balancer), Move: &m,
			})
		}
		a.current = append(a.current, offer)
	}
}

// advised returns the moves that are offered now.
func (c *Controller) advised() (all []plan.Move) {
	for i := range c.advice.current {
		all = append(all, c.advice.current[i].Move)
	}
	return all
}

// accept queues an advised move because an operator wants it.
func (c *Controller) accept(e Accept) {
	at := slices.IndexFunc(c.advice.current, func(a status.Advice) bool { return a.ID == e.Advice })
	if at < 0 {
		const text = "no advice %q: it no longer pays, or was accepted already; 'numavisor top' shows the current " +
			"advice"
		c.refuse(e.Order, ErrUnknown, text, e.Advice)
		return
	}
	m := c.advice.current[at].Move
	m.Advised = false
	c.advice.current = slices.Delete(c.advice.current, at, at+1)
	c.noteFor(e.Order, journal.Entry{
		Kind: journal.Accepted, ID: e.Advice, Guests: m.Names(), What: m.String(), Why: m.Why, By: string(Operator),
	})
	c.queueMove(m, Operator)
}

// adviceID is the same for the same guests going to the same nodes.
func adviceID(m plan.Move) string {
	h := sha256.New()
	for _, g := range m.Guests {
		fmt.Fprintf(h, "%s>%s;", g.Guest, g.To())
	}
	return "a" + hex.EncodeToString(h.Sum(nil)[:4])
}
