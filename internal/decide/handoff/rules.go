package handoff

import (
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Rules are the operator's rules for hand-overs. Zero durations and margins
// have the documented default.
type Rules struct {
	// CPUs are the CPUs that guests hand to each other.
	CPUs topology.CPUSet `json:"cpus"`
	// WholeCores gives all SMT siblings of a core to one guest, always. Siblings share
	// caches and buffers through which one guest could observe the other.
	WholeCores bool `json:"whole_cores,omitempty"`
	// Period is how long a guest may take to release a CPU that another guest needs for
	// its minimum; then the host takes it by force. Default 50 ms.
	Period time.Duration `json:"period_ns,omitempty"`
	// Settle is how long a guest's demand must stay lower before the guest counts as
	// wanting less. Default 100 ms: a hand-over takes some milliseconds, and in simulation
	// 500 ms cost 6 % of the work.
	Settle time.Duration `json:"settle_ns,omitempty"`
	// Margin is the part of a CPU by which demand may exceed a whole number without
	// counting as one CPU more. Default 0.1.
	Margin float64 `json:"margin,omitempty"`
	// Tidy is the time between two exchanges that bring guests nearer to their homes
	// or reunite cores. Default 1 s.
	Tidy time.Duration `json:"tidy_ns,omitempty"`
}

// Defaults of Rules.
const (
	defaultPeriod = 50 * time.Millisecond
	defaultSettle = 100 * time.Millisecond
	defaultMargin = 0.1
	defaultTidy   = time.Second
)

func (r Rules) withDefaults() Rules {
	if r.Period == 0 {
		r.Period = defaultPeriod
	}
	if r.Settle == 0 {
		r.Settle = defaultSettle
	}
	if r.Margin == 0 {
		r.Margin = defaultMargin
	}
	if r.Tidy == 0 {
		r.Tidy = defaultTidy
	}
	return r
}

// Input is all that a decision depends on.
type Input struct {
	// Now is the time of the decision.
	Now      time.Time
	Topology *topology.Topology
	Rules    Rules
	Guests   []Guest
	// Demands have at most one entry for each guest. A guest without one wants its
	// minimum.
	Demands []Demand
	// Grants have at most one entry for each CPU.
	Grants []Grant
	// Memory is what the decision before returned; its zero value at the start.
	Memory Memory
}

// Check reports whether the guests can share the CPUs at all: minimums and
// weights of at least 1, mirrors without repeated CPUs and within the CPUs of
// the rules, an anchor (with WholeCores, a core of the anchor) for each guest, and
// one grant at most for each CPU.
func (in *Input) Check() error {
	var errs []error
	anchors := map[topology.CPUID]string{}
	names := map[string]bool{}
	for i := range in.Guests {
		g := &in.Guests[i]
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("VM %s is listed twice", g.Name))
		}
		names[g.Name] = true
		if g.Weight < 1 || g.Min < 1 || g.Min > len(g.Mirror) {
			errs = append(errs, fmt.Errorf("VM %s: weight %d and minimum %d; allowed: 1 and more, and a minimum of at "+
				"most its %d vCPUs", g.Name, g.Weight, g.Min, len(g.Mirror)))
			continue
		}
		if cpus := topology.SetOf(g.Mirror...); cpus.Len() != len(g.Mirror) || !cpus.SubsetOf(in.Rules.CPUs) {
			errs = append(errs, fmt.Errorf("VM %s mirrors CPUs %v; allowed: each once, of CPUs %v", g.Name, cpus,
				in.Rules.CPUs))
		}
		anchor := in.core(g.Mirror[0])
		if other, taken := anchors[anchor]; taken {
			errs = append(errs, fmt.Errorf("VMs %s and %s have the same anchor, CPU %d", other, g.Name, g.Mirror[0]))
		}
		anchors[anchor] = g.Name
	}
	var granted topology.CPUSet
	for _, g := range in.Grants {
		if granted.Contains(g.CPU) {
			errs = append(errs, fmt.Errorf("CPU %d has two grants", g.CPU))
		}
		granted = granted.With(g.CPU)
	}
	return errors.Join(errs...)
}

// core returns the CPU that stands for the unit of a CPU: with WholeCores the first
// sibling, else the CPU itself.
func (in *Input) core(cpu topology.CPUID) topology.CPUID {
	if c, ok := in.Topology.CPU(cpu); ok && in.Rules.WholeCores {
		if first, ok := c.Siblings.First(); ok {
			return first
		}
	}
	return cpu
}
