package handoff

import (
	"math"
	"time"
)

// Memory is what decisions remember of the past: how many CPUs each guest is
// taken to want, and since when its demand has been lower.
type Memory struct {
	Guests map[string]Wanted `json:"guests,omitempty"`
	// Steady is the same for the demand that is not brief.
	Steady map[string]Wanted `json:"steady,omitempty"`
	// Tidied is when guests last exchanged CPUs for nearness or for whole cores.
	Tidied time.Time `json:"tidied,omitzero"`
	// Divided is the number of divided cores before the last exchange for whole cores,
	// if it was the last exchange: it is repeated only if it helped.
	Divided int `json:"divided,omitempty"`
}

// Wanted is how many CPUs a guest is taken to want.
type Wanted struct {
	CPUs int `json:"cpus"`
	// Changed is when CPUs got its value.
	Changed time.Time `json:"changed"`
	// LowSince is when the demand fell below CPUs; zero: it has not. LowMost is the
	// most that was needed since.
	LowSince time.Time `json:"low_since,omitzero"`
	LowMost  int       `json:"low_most,omitempty"`
}

// Want returns how many CPUs a guest is taken to want after a demand, from least to most.
func (r Rules) Want(before Wanted, d Demand, least, most int, now time.Time) Wanted {
	r = r.withDefaults()
	return r.want(before, r.need(d, least, most), now)
}

// want applies a guest's demand: a rise counts at once, a fall after it has
// lasted for Settle, and then with the most that was needed meanwhile. So demand
// that varies faster than Settle moves nothing.
func (r *Rules) want(before Wanted, need int, now time.Time) Wanted {
	w := before
	switch {
	case need > w.CPUs || w.CPUs == 0:
		return Wanted{CPUs: need, Changed: now}
	case need == w.CPUs:
		w.LowSince, w.LowMost = time.Time{}, 0
	case w.LowSince.IsZero() || now.Before(w.LowSince):
		w.LowSince, w.LowMost = now, need
	default:
		w.LowMost = max(w.LowMost, need)
		if now.Sub(w.LowSince) >= r.Settle {
			return Wanted{CPUs: w.LowMost, Changed: now}
		}
	}
	return w
}

// steady is the demand without what is brief.
func (d *Demand) steady() Demand {
	s := *d
	brief := max(0, d.Brief) // of a guest that misbehaves, it may be anything
	s.Waiting = max(0, d.Waiting-brief)
	s.Running = max(0, d.Running-max(0, brief-d.Waiting))
	return s
}

// need is the number of CPUs that a demand fills. Demand that is no number, or
// beyond all bounds, comes from a guest that misbehaves; it counts as the least or
// the most that the guest can have.
func (r *Rules) need(d Demand, least, most int) int {
	sum := d.Running + d.Waiting
	if math.IsNaN(sum) || d.Running < 0 || d.Waiting < 0 {
		return least
	}
	return int(max(float64(least), min(math.Ceil(sum-r.Margin), float64(most))))
}
