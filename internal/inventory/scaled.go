package inventory

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

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
	// Divided are the vCPUs that are bound to one of several nodes by what they access, ascending by node. The others
	// run on any node of their cell.
	Divided []VCPUsOfNode `json:"divided,omitempty"`
}

// VCPUsOfNode are vCPUs of a guest on one node.
type VCPUsOfNode struct {
	Node  topology.NodeID `json:"node"`
	VCPUs guest.VCPUSet   `json:"vcpus"`
}

// Answers reports whether the guest's agent has reported, within the last three seconds.
func (s *Scaled) Answers() bool { return s.Means != "" && !s.Silent }

// AgentText says in words whether the guest's agent answers and how it takes vCPUs out of use.
func (s *Scaled) AgentText() string { return agentText(s.Means, s.Silent) }

// DividedText says which vCPUs are bound to nodes by what they access, such as "0-1 on node 0, 2-3 on node 1"; empty:
// none.
func (s *Scaled) DividedText() string {
	texts := make([]string, 0, len(s.Divided))
	for _, d := range s.Divided {
		texts = append(texts, fmt.Sprintf("%s on node %d", d.VCPUs, d.Node))
	}
	return strings.Join(texts, ", ")
}
