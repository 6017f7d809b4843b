package inventory

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// HandedOver is what the daemon knows of a running mirrored guest that hands CPUs over.
type HandedOver struct {
	// CPUs are those that the guest is granted; those that it has been asked to release and
	// has not released are among them.
	CPUs topology.CPUSet `json:"cpus"`
	// Min is the number of CPUs that the guest always has; Weight is its share if the CPUs do
	// not suffice.
	Min    int `json:"min_vcpus"`
	Weight int `json:"weight"`
	// Demand is how many CPUs the guest's agent said last that the guest could use; nil: it has
	// said nothing, or only the daemon knows.
	Demand *float64 `json:"demand_cpus,omitempty"`
	// Means is how the agent frees vCPUs, as api/guest names it; empty: no agent has reported.
	Means string `json:"means,omitempty"`
	// Silent says that the agent has sent nothing for three seconds.
	Silent bool `json:"silent,omitempty"`
	// Taken counts the CPUs that the guest has been granted since it was first seen.
	Taken int `json:"taken,omitempty"`
	// Misbehaved counts the vCPUs that ran after the guest had released them, and were
	// confined to the guest's other CPUs; the last one at MisbehavedAt.
	Misbehaved   int       `json:"misbehaved,omitempty"`
	MisbehavedAt time.Time `json:"misbehaved_at,omitzero"`
	// Refused counts the requests to release a CPU that the guest did not obey in time, since
	// the daemon started.
	Refused int `json:"refused,omitempty"`
	// Times are those of the releases since the daemon started.
	Times HandoverTimes `json:"times,omitzero"`
}

// The means that code asks for; an agent names others, too (api/guest).
const (
	// NoMeans: the guest's kernel has no way to take a vCPU out of use.
	NoMeans = "none"
	// OfflineMeans: it takes vCPUs offline, for lack of partitions of cgroup v2.
	OfflineMeans = "offline"
)

// Answers reports whether the guest's agent has reported, within the last three seconds.
func (h *HandedOver) Answers() bool { return h.Means != "" && !h.Silent }

// AgentText says in words whether the guest's agent answers and how it frees vCPUs.
func (h *HandedOver) AgentText() string { return agentText(h.Means, h.Silent) }

func agentText(means string, silent bool) string {
	switch {
	case means == "":
		return "no agent has reported"
	case silent:
		return fmt.Sprintf("its agent (means %s) has sent nothing for 3 s", means)
	case means == NoMeans:
		return "its agent has no means to free vCPUs"
	}
	return fmt.Sprintf("its agent frees vCPUs by means %s", means)
}

// HandoverTimes are the times from a request to release a CPU until the CPU was free,
// counted by length.
type HandoverTimes struct {
	// Counts has the number of times up to each of HandoverBounds, without those up to the
	// bound before; the last entry is of longer ones. Empty: there was none.
	Counts []uint64      `json:"counts,omitempty"`
	Sum    time.Duration `json:"sum_ns,omitempty"`
}

// handoverBounds divide the range between a few milliseconds, which a partition in the guest
// takes, and a second, after which the host gives up. The period (50 ms) is one of them.
var handoverBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 7500 * time.Microsecond,
	10 * time.Millisecond, 15 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 1 * time.Second,
}

// HandoverBounds returns the bounds of HandoverTimes, ascending.
func HandoverBounds() []time.Duration { return append([]time.Duration(nil), handoverBounds[:]...) }

// Add counts a time; a negative one counts as 0.
func (h *HandoverTimes) Add(d time.Duration) {
	if h.Counts == nil {
		h.Counts = make([]uint64, len(handoverBounds)+1)
	}
	d = max(0, d)
	i := 0
	for i < len(handoverBounds) && d > handoverBounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += d
}

// Count is the number of times.
func (h *HandoverTimes) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile returns the bound under which a share q of the times is: 0.5 for the median. It is
// false if there are no times, or if the bound would be beyond the last one.
func (h *HandoverTimes) Quantile(q float64) (most time.Duration, ok bool) {
	all := h.Count()
	var below uint64
	for i, c := range h.Counts {
		if below += c; all > 0 && float64(below) >= q*float64(all) {
			if i >= len(handoverBounds) {
				return 0, false
			}
			return handoverBounds[i], true
		}
	}
	return 0, false
}

// Clone returns a copy that shares nothing.
func (h HandoverTimes) Clone() HandoverTimes {
	h.Counts = append([]uint64(nil), h.Counts...)
	return h
}
