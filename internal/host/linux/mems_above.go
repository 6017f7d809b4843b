package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// MemsLimitError says which cgroup keeps a process from using nodes. The group
// is neither Numavisor's nor libvirt's to change.
type MemsLimitError struct {
	File    string           // the whole path of its cpuset.mems
	Allowed topology.NodeSet // what the file says
	Wanted  topology.NodeSet
}

func (e *MemsLimitError) Error() string {
	return fmt.Sprintf(
		"%s allows nodes %s, so nodes %s cannot be used below it: run 'echo %s > %s', or with systemd change "+
			"AllowedMemoryNodes of the unit",
		e.File,
		e.Allowed,
		e.Wanted.Minus(e.Allowed),
		e.Allowed.Union(e.Wanted),
		e.File,
	)
}

// AllowMems makes sure that no cgroup of a process, and none above, keeps it
// from using nodes. The groups of a VM (libvirt's, from its top group down) and
// those that Numavisor made are widened where they do, which copies nothing:
// libvirt itself widens only the thread groups. A group above is a MemsLimitError.
func (r Root) AllowMems(ctx context.Context, pid int, nodes topology.NodeSet) error {
	at, err := r.CgroupOf(pid)
	if err != nil {
		return nil //nolint:nilerr // without cgroup v2 no group limits
	}
	return at.allowMems(ctx, nodes)
}

// allowMems is Root.AllowMems for a group and those above it.
func (c Cgroup) allowMems(ctx context.Context, nodes topology.NodeSet) error {
	at, path := c, []Cgroup{c}
	for ; at.Path != "/"; at = at.Parent() {
		path = append(path, at.Parent())
	}
	slices.Reverse(path)
	ours := false
	for _, c := range path {
		_, isGuest := guestIDOf(c.Name())
		ours = ours || isGuest || c.Path != "/" && c.Parent().Path == ownParent
		allowed, err := c.Mems()
		if errors.Is(err, fs.ErrNotExist) || err == nil && (allowed.IsEmpty() || nodes.SubsetOf(allowed)) {
			continue // it has no limit of its own
		}
		if err != nil {
			return err
		}
		if !ours {
			return &MemsLimitError{File: c.file("cpuset.mems"), Allowed: allowed, Wanted: nodes}
		}
		if _, err := c.SetMems(ctx, allowed.Union(nodes)); err != nil {
			return fmt.Errorf("widening the VM's cgroup: %w", err)
		}
	}
	return nil
}
