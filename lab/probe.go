package lab

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// Probe is how fast a guest answered for a while, by its own clock: it touches
// a page anywhere in its memory once each millisecond, and does nothing else.
type Probe struct {
	Touches int
	// Touch is how long the touch itself took: it waits while its page is moved.
	Touch Delays
	// Answer is the time from when a touch was due until it was done: it includes
	// the wait of a vCPU that does not run, and all touches due during a stall.
	Answer Delays
}

// Delays are the delays that half, 99 % and 99.9 % of all touches take at
// most, and the longest.
type Delays struct{ P50, P99, P999, Max time.Duration }

// StartProbe starts the probe of a guest that has answered AwaitGuest. The
// parameter every is the time between its reports (a minute at most), times the
// number of reports. StopProbe ends the probe earlier: see Probed.
func (h *Host) StartProbe(ctx context.Context, name string, every time.Duration, times int) error {
	return h.typeLines(ctx, []string{name, fmt.Sprintf("probe %d %d", every.Milliseconds(), times)})
}

// StopProbe ends the probe that StartProbe began and drops the results that the
// guest has not reported yet.
func (h *Host) StopProbe(ctx context.Context, name string) error {
	return h.typeLines(ctx, []string{name, ""}) // any line ends it; an empty one has no other effect
}

// Probed returns the results that a guest has reported so far. It reads a file
// outside the lab, so that the call costs the lab nothing.
func (h *Host) Probed(name string) ([]Probe, error) {
	text, err := h.GuestConsole(name)
	return parseProbes(text), err
}

// parseProbes reads the lines of guest.c's command probe. It ignores an incomplete
// line, and everything else on the console.
func parseProbes(console []byte) []Probe {
	var all []Probe
	for line := range bytes.Lines(console) {
		var touches uint32
		var us [8]uint32
		_, err := fmt.Sscanf(string(line), "PROBE %d touch %d %d %d %d answer %d %d %d %d\r\n",
			&touches, &us[0], &us[1], &us[2], &us[3], &us[4], &us[5], &us[6], &us[7])
		if err == nil && touches > 0 && bytes.HasSuffix(line, []byte("\n")) {
			all = append(all, Probe{int(touches), delays(us[:4]), delays(us[4:])})
		}
	}
	return all
}

func delays(us []uint32) Delays {
	of := func(i int) time.Duration { return time.Duration(us[i]) * time.Microsecond }
	return Delays{of(0), of(1), of(2), of(3)}
}
