package inventory

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// NodeLimit is a cgroup above a guest's own groups that restricts the nodes
// from which processes below it take memory. Neither Numavisor nor the
// hypervisor may change it.
type NodeLimit struct {
	File  string           `json:"file"`  // path of its cpuset.mems
	Nodes topology.NodeSet `json:"nodes"` // the value of File
}

// Widen returns the shell command that lets the cgroup use nodes in addition.
func (l NodeLimit) Widen(nodes topology.NodeSet) string {
	return fmt.Sprintf("echo %s > %s", l.Nodes.Union(nodes), text.ShellWord(l.File))
}

// NodeLimitError means that a cgroup above a guest's own groups keeps it from
// using nodes. No retry helps until the cgroup is widened.
type NodeLimitError struct {
	NodeLimit
	Wanted topology.NodeSet
}

func (e *NodeLimitError) Error() string {
	return fmt.Sprintf("%s allows nodes %s, so nodes %s cannot be used below it: run '%s', or with systemd change "+
		"AllowedMemoryNodes of the unit", e.File, e.Nodes, e.Wanted.Minus(e.Nodes), e.Widen(e.Wanted))
}

// CheckNodes returns a NodeLimitError for the topmost cgroup that keeps the
// guest from using nodes; nil if none is known to.
func (g *Guest) CheckNodes(nodes topology.NodeSet) error {
	for _, l := range g.Seen.NodeLimits {
		if !nodes.SubsetOf(l.Nodes) {
			return &NodeLimitError{NodeLimit: l, Wanted: nodes}
		}
	}
	return nil
}
