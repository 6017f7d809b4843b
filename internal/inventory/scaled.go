package inventory

import "github.com/numavisor/numavisor/internal/guest"

// Scaled is what the daemon knows of a running guest whose number of vCPUs follows its demand.
type Scaled struct {
	// Used are the vCPUs that the guest uses, by the last report of its agent. Empty: no agent has reported; then
	// the guest uses all of its vCPUs.
	Used guest.VCPUSet `json:"used"`
	// Min is the number of vCPUs that the guest always uses; Weight is its share if CPUs do not suffice.
	Min    int `json:"min_vcpus"`
	Weight int `json:"weight"`
	// Demand is how many vCPUs the guest's agent said last that the guest could use; nil: it has said nothing, or only
	// the daemon knows.
	Demand *float64 `json:"demand_vcpus,omitempty"`
	// Means is how the agent takes vCPUs out of use, as api/guest names it; empty: no agent has reported.
	Means string `json:"means,omitempty"`
	// Silent says that the agent has sent nothing for three seconds.
	Silent bool `json:"silent,omitempty"`
}

// Answers reports whether the guest's agent has reported, within the last three seconds.
func (s *Scaled) Answers() bool { return s.Means != "" && !s.Silent }

// AgentText says in words whether the guest's agent answers and how it takes vCPUs out of use.
func (s *Scaled) AgentText() string { return agentText(s.Means, s.Silent) }
