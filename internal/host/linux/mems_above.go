package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// NodeLimits returns the cgroups that restrict a process to nodes and that
// neither Numavisor nor libvirt may widen, the topmost first. Of a VM these are
// the groups above its top group; of any other process those above the group
// that SetMems makes for it. Nothing is changed.
func (r Root) NodeLimits(pid int) ([]inventory.NodeLimit, error) {
	at, err := r.CgroupOf(pid)
	if errors.Is(err, ErrNoCgroupV2) {
		return nil, nil // no group limits
	}
	if err != nil {
		return nil, err
	}
	foreign, own := at.path()
	if len(own) == 0 {
		foreign = []Cgroup{{at.Mount, ownParent}}
	}
	var limits []inventory.NodeLimit
	for _, c := range foreign {
		nodes, err := c.memsLimit()
		if err != nil {
			return limits, err
		}
		if !nodes.IsEmpty() {
			limits = append(limits, inventory.NodeLimit{File: c.file("cpuset.mems"), Nodes: nodes})
		}
	}
	return limits, nil
}

// AllowMems makes sure that no cgroup of a process, and none above, excludes
// the given nodes. It widens the groups of a VM (libvirt's, from its top group
// down) and those that Numavisor made, which copies nothing: libvirt itself
// widens only the thread groups. If a group above these excludes nodes, AllowMems
// changes nothing and returns an inventory.NodeLimitError.
func (r Root) AllowMems(ctx context.Context, pid int, nodes topology.NodeSet) error {
	at, err := r.CgroupOf(pid)
	if err != nil {
		return nil //nolint:nilerr // without cgroup v2 no group limits
	}
	return at.allowMems(ctx, nodes)
}

// allowMems is Root.AllowMems for a group and those above it.
func (c Cgroup) allowMems(ctx context.Context, nodes topology.NodeSet) error {
	foreign, own := c.path()
	for _, c := range foreign {
		allowed, err := c.memsLimit()
		if err != nil {
			return err
		}
		if !allowed.IsEmpty() && !nodes.SubsetOf(allowed) {
			return &inventory.NodeLimitError{
				NodeLimit: inventory.NodeLimit{File: c.file("cpuset.mems"), Nodes: allowed}, Wanted: nodes}
		}
	}
	for _, c := range own {
		allowed, err := c.memsLimit()
		if err != nil {
			return err
		}
		if allowed.IsEmpty() || nodes.SubsetOf(allowed) {
			continue
		}
		if _, err := c.SetMems(ctx, allowed.Union(nodes)); err != nil {
			return fmt.Errorf("widening the VM's cgroup: %w", err)
		}
	}
	return nil
}

// path returns the groups from below the root down to this one: foreign ones,
// and then those of a VM or of Numavisor, which may be widened.
func (c Cgroup) path() (foreign, own []Cgroup) {
	var path []Cgroup
	for ; c.Path != "/"; c = c.Parent() {
		path = append(path, c)
	}
	slices.Reverse(path)
	for i, c := range path {
		if _, isVM := guestIDOf(c.Name()); isVM || c.Parent().Path == ownParent {
			return path[:i], path[i:]
		}
	}
	return path, nil
}

// memsLimit reads cpuset.mems; empty where the group has no limit of its own.
func (c Cgroup) memsLimit() (topology.NodeSet, error) {
	nodes, err := c.Mems()
	if errors.Is(err, fs.ErrNotExist) {
		return topology.NodeSet{}, nil // the group is gone, or has no cpuset controller
	}
	return nodes, err
}
