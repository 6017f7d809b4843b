package peers

// Score is the result of a part of a run.
type Score struct {
	Seconds float64
	// Work is in cache lines changed per second, by guest and in all.
	Guests []float64
	Work   float64
	Accesses
}

// ScoreOf adds up windows. It measures a guest's work by the guest's own clock.
func ScoreOf(windows []Window) Score {
	var s Score
	if len(windows) == 0 {
		return s
	}
	for g := range windows[0].Lines {
		var lines uint64
		var seconds float64
		for _, w := range windows {
			lines += w.Lines[g]
			seconds += w.Seconds[g]
		}
		s.Seconds = max(s.Seconds, seconds)
		s.Guests = append(s.Guests, float64(lines)/seconds)
		s.Work += float64(lines) / seconds
	}
	for _, w := range windows {
		s.Accesses = s.Sum(w.Accesses)
	}
	return s
}

// quietPages is how many pages may move in a window that counts as one without
// moves: 1 MiB. The kernel moves some to get contiguous memory.
const quietPages = 256

// Settled returns the windows after the last one in which memory moved, and
// how many seconds had passed then. None are left where moves never ended.
func (r Run) Settled() (after []Window, seconds float64) {
	after = r.Windows
	var passed float64
	for i, w := range r.Windows {
		passed += longest(w)
		if w.PagesMoved > quietPages {
			after, seconds = r.Windows[i+1:], passed
		}
	}
	return after, seconds
}

// PagesMoved is how many pages of 4 KiB moved in all.
func (r Run) PagesMoved() uint64 {
	var sum uint64
	for _, w := range r.Windows {
		sum += w.PagesMoved
	}
	return sum
}

func longest(w Window) float64 {
	var most float64
	for _, s := range w.Seconds {
		most = max(most, s)
	}
	return most
}

// The daemon's target from a worst-case start, and within how many seconds.
const (
	goodNanos   = 89
	goodLocal   = 0.95
	goodSeconds = 60
)

func (a Accesses) good() bool {
	local, _, _ := a.Shares()
	return local >= goodLocal && a.MeanNanos() <= goodNanos
}

// Good returns after how many seconds all windows to the end are good, and
// whether any is: at most 89 ns, at least 95 % local.
func (r Run) Good() (seconds float64, ok bool) {
	var passed float64
	for _, w := range r.Windows {
		passed += longest(w)
		if !w.good() {
			seconds, ok = passed, false
			continue
		}
		ok = true
	}
	return seconds, ok
}
