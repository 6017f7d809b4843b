package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// ownParent is the parent of the groups that Numavisor makes for plain
// processes.
const ownParent = "/numavisor"

// CreateOwn makes the group /numavisor/NAME with the given CPUs and memory
// nodes (empty: as above), for processes that no VM manager controls. Pages
// that its members touch later stay on the nodes. Put processes in with Adopt.
func CreateOwn(ctx context.Context, mount, name string, cpus topology.CPUSet, mems topology.NodeSet) (Cgroup, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\n") {
		return Cgroup{}, fmt.Errorf(
			"cgroup name %q: must not be empty, \".\" or \"..\", nor contain \"/\" or a line break", name)
	}
	own := Cgroup{mount, ownParent}.Child(name)
	if err := os.MkdirAll(own.file(""), 0o755); err != nil {
		return Cgroup{}, fmt.Errorf("making cgroup %s: %w; run as root", own.Path, err)
	}
	err := own.EnableController("cpuset")
	if err == nil && !cpus.IsEmpty() {
		_, err = own.SetCPUs(cpus)
	}
	if err == nil && !mems.IsEmpty() {
		_, err = own.SetMems(ctx, mems)
	}
	if err != nil {
		return Cgroup{}, errors.Join(err, own.Remove())
	}
	return own, nil
}

// SetMems restricts a process to memory nodes: a VM of libvirt by cpuset.mems
// of all its thread groups, any other process by a group of its own, which
// SetMems makes if the process has none. Do not leave out nodes on which the
// process has pages: the kernel would migrate those pages within the call (see
// Cgroup.SetMems).
func (r Root) SetMems(ctx context.Context, pid int, nodes topology.NodeSet) error {
	vm, ok, err := r.GuestCgroupOf(pid)
	if err != nil {
		return err
	}
	if ok {
		if err := vm.Threads.allowMems(ctx, nodes); err != nil {
			return err
		}
		return vm.SetMems(ctx, nodes)
	}
	at, err := r.CgroupOf(pid)
	if err != nil {
		return err
	}
	if at.Parent().Path == ownParent {
		_, err := at.SetMems(ctx, nodes)
		return err
	}
	_, err = r.enclose(ctx, at.Mount, pid, nodes)
	return err
}

// enclose puts a process into a new group of its own. Entering a cpuset resets
// the affinity of its threads on kernels before 6.2, so enclose restores it.
func (r Root) enclose(ctx context.Context, mount string, pid int, nodes topology.NodeSet) (Cgroup, error) {
	threads, _, err := r.Threads(pid)
	if err != nil {
		return Cgroup{}, err
	}
	own, err := CreateOwn(ctx, mount, fmt.Sprintf("pid-%d", pid), topology.CPUSet{}, nodes)
	if err != nil {
		return Cgroup{}, err
	}
	if err := own.Adopt(pid); err != nil {
		return Cgroup{}, errors.Join(err, own.Remove())
	}
	for _, t := range threads {
		now, err := Affinity(t.TID)
		if Gone(err) || (err == nil && now.Equal(t.Affinity)) {
			continue
		}
		if err := SetAffinity(t.TID, t.Affinity); err != nil && !Gone(err) {
			return own, fmt.Errorf("restoring the affinity that cgroup %s reset: %w", own.Path, err)
		}
	}
	return own, nil
}

// justMade is how long an empty group counts as new: its process may be about
// to enter.
const justMade = time.Minute

// RemoveEmptyOwn removes the groups of processes that have ended.
func RemoveEmptyOwn(mount string) error {
	groups, err := (Cgroup{mount, ownParent}).Children()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, c := range groups {
		if info, err := os.Stat(c.file("")); err != nil || time.Since(info.ModTime()) < justMade {
			continue
		}
		if members, err := c.Members(); err == nil && len(members) == 0 {
			errs = append(errs, c.Remove())
		}
	}
	return errors.Join(append(errs, err)...)
}
