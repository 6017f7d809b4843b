package peers

import (
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
)

// Run is the result of one run of one manager.
type Run struct {
	Layout  string    `json:"layout"`
	Manager string    `json:"manager"`
	Round   int       `json:"round"` // from 1 on; a failed run is repeated in the same round
	Began   time.Time `json:"began"`
	Took    float64   `json:"took_seconds"`
	// Others is the share of this machine's CPU time that other programs used meanwhile, 0 to 1.
	Others float64 `json:"others"`
	Build  string  `json:"build,omitempty"` // version of Numavisor
	// Failed is the reason why the run does not count; empty: it counts.
	Failed  string   `json:"failed,omitempty"`
	Windows []Window `json:"windows,omitempty"`
	// Start and End say where each guest's memory and vCPUs were when they
	// began to work and at the end.
	Start []string `json:"start,omitempty"`
	End   []string `json:"end,omitempty"`
	// Memory is each VM's memory by node, in MiB, when it began to work.
	Memory [][]uint64 `json:"memory_mib,omitempty"`
	// Notes is the manager's own output at the end.
	Notes string `json:"notes,omitempty"`
}

// Window is a part of a run.
type Window struct {
	Seconds []float64 `json:"seconds"` // that passed, by each guest's own clock
	Lines   []uint64  `json:"lines"`   // cache lines that each guest changed
	Accesses
	// PagesMoved are the pages of 4 KiB that the host's kernel moved, for any
	// program.
	PagesMoved uint64 `json:"pages_moved"`
}

// Accesses are those that the lab's counter counted, by the distance of the memory.
type Accesses struct {
	Local     uint64 `json:"local"`
	Neighbour uint64 `json:"neighbour"`
	Remote    uint64 `json:"remote"`
}

// Sum adds up.
func (a Accesses) Sum(b Accesses) Accesses {
	return Accesses{a.Local + b.Local, a.Neighbour + b.Neighbour, a.Remote + b.Remote}
}

// Minus returns the accesses after b.
func (a Accesses) Minus(b Accesses) Accesses {
	return Accesses{a.Local - b.Local, a.Neighbour - b.Neighbour, a.Remote - b.Remote}
}

// Shares are from 0 to 1; all 0 where nothing was counted.
func (a Accesses) Shares() (local, neighbour, remote float64) {
	all := float64(a.Local + a.Neighbour + a.Remote)
	if all == 0 {
		return 0, 0, 0
	}
	return float64(a.Local) / all, float64(a.Neighbour) / all, float64(a.Remote) / all
}

// Latencies of the distances on the machine that the shapes imitate.
const (
	localNanos     = 85
	neighbourNanos = 140
	remoteNanos    = 240
)

// MeanNanos is the duration of the mean access on the imitated machine.
func (a Accesses) MeanNanos() float64 {
	local, neighbour, remote := a.Shares()
	return local*localNanos + neighbour*neighbourNanos + remote*remoteNanos
}

// classify adds up a counter's rows and columns by distance.
func classify(s lab.Shape, m labcounter.Misses) Accesses {
	var a Accesses
	cpu := 0
	for from, n := range s.Nodes {
		for range n.CPUs {
			if cpu >= len(m.CPUs) {
				return a
			}
			for i, misses := range m.CPUs[cpu] {
				switch s.Latency(from, int(m.Nodes[i])) {
				case localNanos:
					a.Local += misses
				case neighbourNanos:
					a.Neighbour += misses
				default:
					a.Remote += misses
				}
			}
			cpu++
		}
	}
	return a
}
