package cost

import "math"

// Micro is an amount of cost in millionths.
type Micro int64

// One is a cost of 1.
const One Micro = 1_000_000

// most limits a single amount, so that sums over any host stay far below 2^35.
const most = 1000 * One

// Of rounds a figure to millionths. Amounts above 1000 count as 1000: no decision
// depends on differences between such amounts.
func Of(figure float64) Micro {
	v := math.Round(figure * float64(One))
	if math.IsNaN(v) {
		return most
	}
	return Micro(max(-float64(most), min(float64(most), v)))
}

// Float returns the amount as a figure.
func (m Micro) Float() float64 { return float64(m) / float64(One) }
