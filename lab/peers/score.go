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
// moves: 3 MiB, a huge page and some small ones. The kernel moves some to get contiguous memory.
const quietPages = 768

// leastSettled is how many seconds a settled part lasts at least.
const leastSettled = 9 // two windows of five seconds, by a clock that is not exact

// settled is the first window of the settled part of a run: after the last
// window in which memory moved, and after the last change of what the guests
// do, given in seconds. It is len(r.Windows) where moves never ended, or so late
// that what is left is too short to say anything.
func (r Run) settled(lastChange int) int {
	first := 0
	var passed float64
	for i, w := range r.Windows {
		if w.PagesMoved > quietPages || passed+1 < float64(lastChange) { // a window may be a little longer
			first = i + 1
		}
		passed += longest(w)
	}
	if passed-r.seconds(first) < leastSettled {
		return len(r.Windows)
	}
	return first
}

// seconds is the length of the windows before this one.
func (r Run) seconds(before int) float64 {
	var passed float64
	for _, w := range r.Windows[:before] {
		passed += longest(w)
	}
	return passed
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

// goodLocal is the local share of a window whose guests are where they should be.
const goodLocal = 0.95

func (a Accesses) good() bool {
	local, _, _ := a.Shares()
	return local >= goodLocal
}

// Good returns after how many seconds all windows to the end are at least 95 %
// local, and whether any is.
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
