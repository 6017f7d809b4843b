// Package history stores the measurements of a host over the last hour in bounded
// memory: every sample of the last minutes, and means of 10 seconds before that.
// Balancing uses its loads, and charts use its series.
//
// It has no clock: the latest sample's time is now. It has no lock either:
// the caller must not call Add concurrently with other methods.
package history

import (
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Options bound a history. Zero fields mean the default.
type Options struct {
	// Whole is the time that the history covers; default 1h.
	Whole time.Duration
	// Fine is how long the history stores samples unchanged; default 5m. It
	// holds older samples as means over Step; default 10s.
	Fine, Step time.Duration
	// Resolution is the shortest window that the history holds. It joins faster
	// samples until they cover the window; default 1s.
	Resolution time.Duration
	// Bytes is the history's memory limit by its own count; default 7.5 MiB, which
	// holds an hour of 200 guests on 8 nodes and stays under 8 MiB on the heap. On
	// a host that needs more, the history covers less than the hour: it drops the
	// oldest samples first.
	Bytes int
}

func (o Options) withDefaults() Options {
	for _, d := range []struct{ field, otherwise *time.Duration }{
		{&o.Whole, new(time.Hour)}, {&o.Fine, new(5 * time.Minute)},
		{&o.Step, new(10 * time.Second)}, {&o.Resolution, new(time.Second)},
	} {
		if *d.field <= 0 {
			*d.field = *d.otherwise
		}
	}
	if o.Bytes <= 0 {
		o.Bytes = 15 << 19
	}
	return o
}

// History is an hour of samples. Times in it never decrease.
type History struct {
	limits Options
	coarse []frame // oldest first, all older than fine
	fine   []frame // oldest first; empty only before the first sample
	bytes  int     // memory of frames and their shapes
	// sources are the sources so far, by the number that frames contain; 0 is "not measured".
	sources []inventory.AccessSource
}

// New returns an empty history.
func New(o Options) *History {
	return &History{limits: o.withDefaults(), sources: []inventory.AccessSource{""}}
}

// Add takes in a sample. It ignores a sample without a window, the first of a
// watch, which measured no rates, and likewise a guest's first sample. If the
// clock was set back, Add moves earlier samples back by the same time, so
// that their age does not change.
func (h *History) Add(s inventory.Sample) {
	if s.Window <= 0 {
		return
	}
	end := s.Taken.UnixNano()
	if last := h.last(); last != nil && end <= last.end {
		h.shift(end - int64(s.Window) - last.end)
	}
	f := h.frameOf(&s)
	if last := h.last(); last != nil && h.joins(last, &f) {
		joined := merge(last, &f)
		h.release(last)
		*last = joined
	} else {
		h.fine = append(h.fine, f)
	}
	h.retain(h.last())
	h.age()
}

func (h *History) last() *frame {
	if len(h.fine) == 0 {
		return nil
	}
	return &h.fine[len(h.fine)-1]
}

// joins reports whether the last frame is shorter than the resolution, and the
// next one follows it without a gap.
func (h *History) joins(last, next *frame) bool {
	resolution := h.limits.Resolution.Seconds()
	gap := float64(next.end-last.end)/1e9 - float64(next.window)
	// A window slightly below the resolution is long enough: the intervals of
	// one-second samples are not exact to the nanosecond.
	return float64(last.window) < 0.9*resolution && gap < resolution
}

// age reduces samples that are no longer fine to means, and drops those that
// are too old or exceed the limit.
func (h *History) age() {
	now := h.last().end
	for len(h.fine) > 1 && h.fine[0].end <= now-int64(h.limits.Fine) {
		h.coarsen(h.fine[0])
		h.fine[0] = frame{}
		h.fine = h.fine[1:]
	}
	for len(h.coarse) > 0 && (h.coarse[0].end <= now-int64(h.limits.Whole) || h.bytes > h.limits.Bytes) {
		h.dropFirst(&h.coarse)
	}
	for len(h.fine) > 1 && h.bytes > h.limits.Bytes {
		h.dropFirst(&h.fine)
	}
}

// coarsen merges a fine frame into the mean of its step.
func (h *History) coarsen(f frame) {
	step := int64(h.limits.Step)
	if n := len(h.coarse); n > 0 && h.coarse[n-1].end/step == f.end/step {
		joined := merge(&h.coarse[n-1], &f)
		h.release(&h.coarse[n-1])
		h.release(&f)
		h.coarse[n-1] = joined
		h.retain(&joined)
		return
	}
	h.coarse = append(h.coarse, f)
}

func (h *History) dropFirst(frames *[]frame) {
	h.release(&(*frames)[0])
	(*frames)[0] = frame{} // its backing array remains allocated
	*frames = (*frames)[1:]
}

func (h *History) retain(f *frame) {
	if f.shape.users++; f.shape.users == 1 {
		h.bytes += f.shape.bytes()
	}
	h.bytes += f.bytes()
}

func (h *History) release(f *frame) {
	if f.shape.users--; f.shape.users == 0 {
		h.bytes -= f.shape.bytes()
	}
	h.bytes -= f.bytes()
}

// shift moves all times back or forward.
func (h *History) shift(nanos int64) {
	for _, frames := range [][]frame{h.coarse, h.fine} {
		for i := range frames {
			frames[i].end += nanos
		}
	}
}

// since calls see for the frames that overlap the last duration, the latest first,
// with the seconds of the overlap.
func (h *History) since(over time.Duration, see func(f *frame, reach float64)) {
	if len(h.fine) == 0 {
		return
	}
	from := h.last().end - int64(over)
	for _, frames := range [][]frame{h.fine, h.coarse} {
		for i := len(frames) - 1; i >= 0; i-- {
			if frames[i].end <= from {
				return
			}
			see(&frames[i], float64(frames[i].end-from)/1e9)
		}
	}
}

// all calls see for every frame, the oldest first.
func (h *History) all(see func(*frame)) {
	for _, frames := range [][]frame{h.coarse, h.fine} {
		for i := range frames {
			see(&frames[i])
		}
	}
}
