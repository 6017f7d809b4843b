package room

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
)

// RefusalError is the error for a guest that does not fit, with the moves of others
// that would make room for it. It wraps the *place.NoFitError.
type RefusalError struct {
	*place.NoFitError
	MakeRoom Plan `json:"make_room"`
}

// Advise adds the moves that make room to the error of place.Place; any other error
// stays as it is.
func Advise(r Request, err error) error {
	var noFit *place.NoFitError
	if !errors.As(err, &noFit) {
		return err
	}
	return &RefusalError{NoFitError: noFit, MakeRoom: Find(r)}
}

// Unwrap returns the *place.NoFitError.
func (e *RefusalError) Unwrap() error { return e.NoFitError }

// Error gives the tightest constraints, the first change, and the moves in one line.
func (e *RefusalError) Error() string {
	if len(e.MakeRoom.Moves) == 0 {
		return e.NoFitError.Error()
	}
	all := e.Shortages()
	if len(e.Changes) > 0 {
		all = e.NoFitError.Error()
	}
	return all + "; make room: " + strings.Join(e.MakeRoom.Lines(), ", ")
}

// Text lists everything for people.
func (e *RefusalError) Text() string { return e.NoFitError.Text() + e.MakeRoom.Text() }

// Text lists the moves, or why there are none.
func (p Plan) Text() string {
	var b strings.Builder
	b.WriteString("make room:\n")
	for _, line := range p.Lines() {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	switch {
	case len(p.Moves) == 0:
		fmt.Fprintf(&b, "  %s\n", p.Reason)
	case p.Proven:
		b.WriteString(makes)
	default:
		b.WriteString(makes + "  there may be cheaper moves: the search stopped at its limit\n")
	}
	return b.String()
}

const makes = "  'numavisor create --make-room' makes these moves first\n"

// Lines describe each move: "move web3 to node 2: 4 GiB, about 3 s".
func (p Plan) Lines() []string {
	all := make([]string, len(p.Moves))
	for i, m := range p.Moves {
		all[i] = line(m)
	}
	return all
}

func line(m plan.Move) string {
	g := &m.Guests[0]
	nodes := "node"
	if g.Placement.Nodes.Len() != 1 {
		nodes = "nodes"
	}
	cost := "nothing to copy"
	if g.Bytes > 0 {
		cost = g.Bytes.String()
		if took, known := m.Cost.Time(); known {
			cost += ", about " + about(took)
		}
	}
	return fmt.Sprintf("move %s to %s %s: %s", g.Guest, nodes, text.Set(g.Placement.Nodes), cost)
}

// about rounds a time up to seconds, or to minutes.
func about(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int64((d+time.Second-1)/time.Second))
	}
	return fmt.Sprintf("%d min", int64((d+time.Minute-1)/time.Minute))
}
