package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxRound bounds a plan that is read: a round of hundreds of guests has some MB.
const maxRound = 64 * topology.MiB

// ParseRound reads a round as JSON, as 'numavisor balance -o json' writes it.
// What it does not know it refuses: a plan that is not understood is not to be
// carried out in part.
func ParseRound(r io.Reader) (Round, error) {
	var round Round
	d := json.NewDecoder(io.LimitReader(r, int64(maxRound)))
	d.DisallowUnknownFields()
	if err := d.Decode(&round); err != nil {
		return Round{}, fmt.Errorf("not a plan of moves: %w; 'numavisor balance -o json' writes one", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Round{}, errors.New("not a plan of moves: more follows after its end")
	}
	if round.Host == "" {
		return Round{}, errors.New("not a plan of moves: it names no host; 'numavisor balance -o json' writes one")
	}
	for i, m := range round.Moves {
		if err := m.Validate(); err != nil {
			return Round{}, fmt.Errorf("move %d: %w", i+1, err)
		}
		if !m.Kind.IsValid() {
			return Round{}, fmt.Errorf("move %d: kind %q: allowed are %s", i+1, m.Kind, kinds())
		}
	}
	return round, nil
}

// kinds lists the kinds of moves in words.
func kinds() string {
	words := make([]string, len(moveKinds))
	for i, k := range moveKinds {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}

// Validate returns an error where a move does not say of each guest, once,
// where it shall go.
func (m Move) Validate() error {
	if len(m.Guests) == 0 {
		return errors.New("it names no guest")
	}
	seen := map[string]bool{}
	for _, g := range m.Guests {
		switch {
		case g.Guest == "" || g.Guest != g.Placement.Guest:
			return fmt.Errorf("guest %q is to get the placement of guest %q", g.Guest, g.Placement.Guest)
		case seen[g.Guest]:
			return fmt.Errorf("guest %s is in it twice", g.Guest)
		}
		seen[g.Guest] = true
	}
	return nil
}
