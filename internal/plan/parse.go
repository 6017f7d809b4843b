package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxSize limits the size of a plan to read: a plan for hundreds of guests takes a few MiB.
const maxSize = 64 * topology.MiB

// Parse reads a plan as JSON, as 'numavisor balance -o json' writes it. It
// refuses unknown fields, so that no plan is executed in part.
func Parse(r io.Reader) (Plan, error) {
	var p Plan
	d := json.NewDecoder(io.LimitReader(r, int64(maxSize)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Plan{}, fmt.Errorf("not a plan of moves: %w; 'numavisor balance -o json' writes one", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, errors.New("not a plan of moves: more follows after its end")
	}
	if p.Host == "" {
		return Plan{}, errors.New("not a plan of moves: it names no host; 'numavisor balance -o json' writes one")
	}
	for i, m := range p.Moves {
		if err := m.Validate(); err != nil {
			return Plan{}, fmt.Errorf("move %d: %w", i+1, err)
		}
		if !m.Kind.IsValid() {
			return Plan{}, fmt.Errorf("move %d: kind %q: allowed are %s", i+1, m.Kind, kinds())
		}
		for _, g := range m.Guests {
			if g.Kind != "" && !g.Kind.IsValid() {
				return Plan{}, fmt.Errorf("move %d: kind %q of VM %s: allowed are %s", i+1, g.Kind, g.Guest, kinds())
			}
		}
	}
	return p, nil
}

// kinds lists the kinds of moves in words.
func kinds() string {
	words := make([]string, len(moveKinds))
	for i, k := range moveKinds {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}

// Validate returns an error unless a move names the target of each guest exactly
// once.
func (m Move) Validate() error {
	if len(m.Guests) == 0 {
		return errors.New("it names no VM")
	}
	seen := map[string]bool{}
	for _, g := range m.Guests {
		switch {
		case g.Guest == "" || g.Guest != g.Placement.Guest:
			return fmt.Errorf("VM %q has the placement of VM %q", g.Guest, g.Placement.Guest)
		case seen[g.Guest]:
			return fmt.Errorf("VM %s is in it twice", g.Guest)
		}
		seen[g.Guest] = true
	}
	return nil
}
