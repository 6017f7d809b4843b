package journal

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Moment is what a move did for one VM in a part of its time.
type Moment struct {
	// At is the beginning of the part, since the move began, and Length its length:
	// a second, in the trace of a long move a power of two of seconds.
	At     time.Duration `json:"at_ns"`
	Length time.Duration `json:"length_ns"`
	Guest  string        `json:"guest,omitempty"` // empty: all VMs of the move
	// Step is what the move did.
	Step TraceStep `json:"step"`
	// Took is how long it did this within the part.
	Took time.Duration `json:"took_ns"`
	// Copied is the memory copied meanwhile.
	Copied topology.Bytes `json:"copied_bytes,omitempty"`
}

// TraceStep is an activity of a move.
type TraceStep string

// Steps of a trace.
const (
	TracePrepare  TraceStep = "prepare"  // the intent is recorded, the new nodes are allowed
	TraceCopy     TraceStep = "copy"     // memory is copied
	TracePull     TraceStep = "pull"     // the kernel brings memory to the vCPUs
	TracePace     TraceStep = "pace"     // copying waits, to stay within the allowed rate
	TracePin      TraceStep = "pin"      // vCPUs move
	TraceRestrict TraceStep = "restrict" // the VM is restricted to its nodes
	TraceVerify   TraceStep = "verify"   // the result is measured
)

// mostMoments bounds a trace.
const mostMoments = 512

// Trace collects moments of a move. It keeps at most 512: of a longer move the
// parts get longer. The zero value is empty.
type Trace struct {
	length time.Duration
	parts  map[traceKey]*Moment
}

type traceKey struct {
	part  int64
	guest string
	step  TraceStep
}

// Add adds an activity that began and ended at times since the move began. It
// counts for the part in which it began.
func (t *Trace) Add(guest string, step TraceStep, began, ended time.Duration, copied topology.Bytes) {
	if t.parts == nil {
		t.length, t.parts = time.Second, map[traceKey]*Moment{}
	}
	t.add(Moment{At: began, Guest: guest, Step: step, Took: max(0, ended-began), Copied: copied})
	for len(t.parts) > mostMoments {
		all := t.Moments()
		t.length, t.parts = 2*t.length, map[traceKey]*Moment{}
		for _, m := range all {
			t.add(m)
		}
	}
}

func (t *Trace) add(m Moment) {
	key := traceKey{int64(m.At / t.length), m.Guest, m.Step}
	if p := t.parts[key]; p != nil {
		p.At, p.Took, p.Copied = min(p.At, m.At), p.Took+m.Took, p.Copied+m.Copied
		return
	}
	t.parts[key] = &m
}

// Moments returns the moments in the order of time.
func (t *Trace) Moments() []Moment {
	all := make([]Moment, 0, len(t.parts))
	for _, p := range t.parts {
		m := *p
		m.Length = t.length
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Moment) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Guest, b.Guest), cmp.Compare(a.Step, b.Step))
	})
	return all
}
