package balance

import (
	"time"

	"github.com/numavisor/numavisor/internal/policy"
)

// Remembered returns how long a move counts against further moves of its guest: a day,
// so that a guest that goes to and fro comes to rest, and not less than NoReturn.
func Remembered(b policy.Balance) time.Duration { return max(24*time.Hour, time.Duration(b.NoReturn)) }

// Grown reports whether a guest's demand, in CPUs, has grown so much that what was planned for it was planned for
// another load. Noise of 15 % does not reach that.
func Grown(before, now float64) bool { return now >= LeastGrown(before) }

// LeastGrown returns the least demand, in CPUs, that has grown from another one.
func LeastGrown(before float64) float64 {
	const times, cpus = 1.5, 0.25
	return max(times*before, before+cpus)
}

// counts reports whether Remembered covers a move.
func (m *Moved) counts(now time.Time, b policy.Balance) bool { return now.Sub(m.At) < Remembered(b) }

// Cooldown returns when the cooldown of a guest ends; zero: it is in none. The cooldown begins with its last move, and
// doubles with each move that Remembered covers. A guest that needs much more than when that move was planned is in
// none. demand is what it needs, in CPUs; 0: not known.
func (p *Past) Cooldown(guest string, demand float64, now time.Time, b policy.Balance) time.Time {
	recent, last := 0, Moved{}
	for _, m := range p.Moves {
		if m.Guest != guest || !m.counts(now, b) {
			continue
		}
		if recent++; m.At.After(last.At) {
			last = m
		}
	}
	if recent == 0 || last.Demand > 0 && Grown(last.Demand, demand) {
		return time.Time{}
	}
	until := last.At.Add(time.Duration(b.Cooldown) << min(recent-1, 16))
	if !now.Before(until) {
		return time.Time{}
	}
	return until
}
