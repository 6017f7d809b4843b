package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// progressEvery is the time between two lines of progress that go to a file or pipe.
const progressEvery = 5 * time.Second

// progress shows how far copying is: on a terminal in one line that changes,
// elsewhere in a line every 5 s, the first 5 s after the start of copying.
type progress struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	last     time.Time // of the last line; zero: nothing is being copied
}

func progressOn(w io.Writer) *progress {
	return &progress{w: w, terminal: isTerminal(w), now: time.Now}
}

// show reports one state; done says that it is the last of this copy.
func (p *progress) show(state string, done bool) {
	state = text.Visible(state)
	now := p.now()
	switch {
	case p.terminal && done:
		fmt.Fprint(p.w, "\r\033[K")
	case p.terminal:
		fmt.Fprintf(p.w, "\r\033[K%s", state)
	case done:
		p.last = time.Time{}
	case p.last.IsZero():
		p.last = now
	case now.Sub(p.last) >= progressEvery:
		fmt.Fprintln(p.w, state)
		p.last = now
	}
}

// binding reports the copying of a bind.
func (p *progress) binding() apply.Progress {
	return func(_ plan.Step, done, total topology.Bytes) {
		p.show(fmt.Sprintf("moving memory: %v of %v", done, total), done >= total)
	}
}

// moving reports the copying of a move.
func (p *progress) moving() func(status.Moving) {
	return func(m status.Moving) {
		p.show(fmt.Sprintf("%s: %s: %v of %v, %v/s", strings.Join(m.Move.Names(), ", "), m.Step, m.Done, m.Total,
			m.BytesPerSecond), m.Done >= m.Total)
	}
}
