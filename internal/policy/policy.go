// Package policy holds the operator's policy for placement: limits, modes and
// prices, with their units. The zero Policy means the defaults.
package policy

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// Policy is the operator's policy for a host. Fields left at zero have the
// documented default; WithDefaults fills them in.
type Policy struct {
	// KeepFree is memory of each node that guests never get: the host's own.
	// Nil means 2 % of the node, at most 1 GiB.
	KeepFree *topology.Bytes `json:"keep_free_per_node,omitempty"`
	// Overcommit is how many vCPUs of range-bound guests one CPU may carry,
	// summed over all guests of a node; default 2. A single guest never gets
	// more vCPUs on a node than the node has CPUs, whatever this says.
	Overcommit float64 `json:"overcommit,omitempty"`
	// Count says what a guest's vCPUs are counted against; default cores.
	Count Capacity `json:"count,omitempty"`
	// Housekeeping CPUs are not given to guests, in addition to those that the topology names.
	Housekeeping topology.CPUSet `json:"housekeeping,omitzero"`
	// Handoff is about CPUs that mirrored guests hand to each other.
	Handoff Handoff `json:"handoff,omitzero"`
	// GrowHugePagesUpTo is the largest huge page whose pools may be grown from
	// free memory. Nil means 32 MiB: larger pages are seldom found in one piece
	// on a host that has run for a while. Zero forbids growing.
	GrowHugePagesUpTo *topology.Bytes `json:"grow_huge_pages_up_to,omitempty"`
	// Prefer chooses between the least loaded nodes and the fullest; default spread.
	Prefer Preference `json:"prefer,omitempty"`
	// Weights are the price list's weights. Nil means DefaultWeights; where they
	// are given, those left out are 0.
	Weights *Weights `json:"weights,omitempty"`
	// SearchSteps bounds one search for a placement; default 20000 steps,
	// which take 0.15 s at worst. A search that hits the bound returns the best found and says so.
	SearchSteps int `json:"search_steps,omitempty"`
	// Balance is about moving guests that run already.
	Balance Balance `json:"balance,omitzero"`
	// Movers is about other programs that move pages on the host.
	Movers Movers `json:"movers,omitzero"`
	// Alarms are the thresholds of the watched quantities; see
	// Alarms.WithDefaults.
	Alarms Alarms `json:"alarms,omitempty"`
}

// Handoff names the CPUs that guests with cpu.sharing handoff share. No other guest
// gets them.
type Handoff struct {
	CPUs topology.CPUSet `json:"cpus,omitzero"`
	// WholeCores gives all SMT siblings of a core to one guest, always: siblings share
	// caches and buffers through which one guest could observe the other.
	WholeCores bool `json:"whole_cores,omitempty"`
}

// NotShared are the CPUs that guests do not get, except those that hand CPUs to each
// other.
func (p Policy) NotShared() topology.CPUSet { return p.Housekeeping.Union(p.Handoff.CPUs) }

// Capacity is what vCPUs are counted against.
type Capacity string

// Ways to count. Cores: a guest takes one more node rather than run two of
// its vCPUs on one core; where no set of nodes has the cores, threads count.
const (
	CountCores   Capacity = "cores"
	CountThreads Capacity = "threads"
)

// Words returns the ways to count.
func (Capacity) Words() []string { return []string{string(CountCores), string(CountThreads)} }

// Preference says which of two equally good nodes a guest gets.
type Preference string

// Preferences.
const (
	PreferSpread Preference = "spread" // the least loaded: best for the guests
	PreferPack   Preference = "pack"   // the fullest: keeps whole nodes free for wide guests
)

// Words returns the preferences.
func (Preference) Words() []string { return []string{string(PreferSpread), string(PreferPack)} }

// Weights multiply the terms of a placement's cost (package decide/cost).
// All terms are means over the guest and of the order of 1, so weights can
// be compared: latency 4 against load 1 says that memory half as far again
// is worth at most two fully loaded CPUs' wait.
type Weights struct {
	Latency   float64 `json:"latency"`   // of access latency over the host's best, less 1
	Bandwidth float64 `json:"bandwidth"` // of the host's best bandwidth over the path's, less 1
	Load      float64 `json:"load"`      // of the share of CPUs and memory in use afterwards
	Stranding float64 `json:"stranding"` // of the growth of |free CPUs - free memory|, as shares of the node
	WideRoom  float64 `json:"wide_room"` // of the lost room for future VMs of typical sizes, as shares of a node
	Devices   float64 `json:"devices"`   // of latency between the guest's memory and its devices, less 1
	Cache     float64 `json:"cache"`     // of last-level caches more than one that exclusive vCPUs of a cell span
	Growth    float64 `json:"growth"`    // of the share of huge pages that must be added to the pools first
}

// DefaultWeights rank access above load, and load above fragmentation.
var DefaultWeights = Weights{
	Latency: 4, Bandwidth: 2, Load: 1, Stranding: 0.5, WideRoom: 1, Devices: 2, Cache: 0.2, Growth: 0.25,
}

// Defaults of the fields that have a plain one.
const (
	DefaultOvercommit  = 2.0
	DefaultSearchSteps = 20_000
	defaultGrowUpTo    = 32 * topology.MiB
	keepFreePercent    = 2
	keepFreeMost       = topology.GiB
)

// maxWeight and MaxOvercommit (vCPUs for each CPU) keep costs within the exact arithmetic of decide/cost.
const (
	maxWeight     = 100.0
	MaxOvercommit = 64.0
)

// WithDefaults returns p with its zero fields replaced by the defaults. It
// leaves KeepFree alone, whose default depends on the node, see KeepFreeOn; and
// Alarms, which placing does not need and pays for a thousand times over:
// judging fills them in.
func (p Policy) WithDefaults() Policy {
	if p.Overcommit == 0 {
		p.Overcommit = DefaultOvercommit
	}
	if p.Count == "" {
		p.Count = CountCores
	}
	if p.GrowHugePagesUpTo == nil {
		upTo := defaultGrowUpTo
		p.GrowHugePagesUpTo = &upTo
	}
	if p.Prefer == "" {
		p.Prefer = PreferSpread
	}
	if p.Weights == nil {
		w := DefaultWeights
		p.Weights = &w
	}
	if p.SearchSteps == 0 {
		p.SearchSteps = DefaultSearchSteps
	}
	p.Balance = p.Balance.WithDefaults()
	p.Movers = p.Movers.withDefaults()
	return p
}

// KeepFreeOn returns the memory of a node that guests never get.
func (p Policy) KeepFreeOn(n *topology.Node) topology.Bytes {
	if p.KeepFree != nil {
		return min(*p.KeepFree, n.Memory)
	}
	return min(n.Memory/100*keepFreePercent, keepFreeMost)
}

// MayGrow reports whether pools of that page size may be grown.
func (p Policy) MayGrow(size topology.Bytes) bool {
	upTo := defaultGrowUpTo
	if p.GrowHugePagesUpTo != nil {
		upTo = *p.GrowHugePagesUpTo
	}
	return size > 0 && size <= upTo
}

// Validate checks each value. The error joins one *strictyaml.FieldError for
// each field whose value is not allowed.
func (p Policy) Validate() error {
	var c checker
	if p.Overcommit != 0 {
		c.number("overcommit", p.Overcommit, 1, MaxOvercommit)
	}
	oneOf(&c, "count", p.Count)
	oneOf(&c, "prefer", p.Prefer)
	if p.SearchSteps < 0 {
		c.fail("search_steps", p.SearchSteps, "0 (the default) or more")
	}
	p.Balance.check(&c)
	p.Movers.check(&c)
	p.Alarms.check(&c)
	p.Weights.check(&c)
	if len(c.errs) > 0 {
		return fmt.Errorf("policy: %w", errors.Join(c.errs...))
	}
	return nil
}

func (w *Weights) check(c *checker) {
	if w == nil {
		return
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"latency", w.Latency}, {"bandwidth", w.Bandwidth}, {"load", w.Load}, {"stranding", w.Stranding},
		{"wide_room", w.WideRoom}, {"devices", w.Devices}, {"cache", w.Cache}, {"growth", w.Growth},
	} {
		c.number("weights."+f.name, f.value, 0, maxWeight)
	}
}
