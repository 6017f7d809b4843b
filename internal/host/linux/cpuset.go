package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// CPUs reads cpuset.cpus: what was written, empty if nothing was.
func (c Cgroup) CPUs() (topology.CPUSet, error) { return readSet[topology.CPUID](c, "cpuset.cpus") }

// EffectiveCPUs reads the CPUs that the group's tasks may really use:
// cpuset.cpus cut to what the groups above and the host allow.
func (c Cgroup) EffectiveCPUs() (topology.CPUSet, error) {
	return readSet[topology.CPUID](c, "cpuset.cpus.effective")
}

// Mems reads cpuset.mems: what was written, empty if nothing was.
func (c Cgroup) Mems() (topology.NodeSet, error) { return readSet[topology.NodeID](c, "cpuset.mems") }

// EffectiveMems reads the nodes that the group's tasks may really allocate from.
func (c Cgroup) EffectiveMems() (topology.NodeSet, error) {
	return readSet[topology.NodeID](c, "cpuset.mems.effective")
}

func readSet[ID ~int](c Cgroup, name string) (topology.Set[ID], error) {
	data, err := c.read(name)
	if err != nil {
		return topology.Set[ID]{}, err
	}
	set, err := topology.ParseSet[ID](string(data))
	if err != nil {
		return set, fmt.Errorf("%s of cgroup %s: %w", name, c.Path, err)
	}
	return set, nil
}

// NotEffectiveError says that a cpuset value was accepted, but a group above
// (or the host) allows something else.
type NotEffectiveError struct {
	Cgroup, File, Wanted, Effective string
}

func (e *NotEffectiveError) Error() string {
	return fmt.Sprintf("%s of cgroup %s: %q was written, but %q is in effect: a group above allows no more", e.File,
		e.Cgroup, e.Wanted, e.Effective)
}

// SetCPUs writes cpuset.cpus and returns the set in effect afterwards. The
// error is a NotEffectiveError if that differs.
func (c Cgroup) SetCPUs(cpus topology.CPUSet) (effective topology.CPUSet, err error) {
	if err := c.writeCPUSet("cpuset.cpus", cpus.String()); err != nil {
		return effective, err
	}
	if effective, err = c.EffectiveCPUs(); err == nil && !effective.Equal(cpus) {
		err = &NotEffectiveError{c.Path, "cpuset.cpus", cpus.String(), effective.String()}
	}
	return effective, err
}

// SetMems writes cpuset.mems and returns the set in effect afterwards. The
// error is a NotEffectiveError if that differs.
//
// The kernel migrates all pages of every process in the group that are outside
// the new nodes, on one queue for the whole host, and does not report the
// result; the write waits for that. So copy first and narrow later. If ctx ends
// first, the kernel goes on by itself and the error says so.
func (c Cgroup) SetMems(ctx context.Context, nodes topology.NodeSet) (effective topology.NodeSet, err error) {
	written := make(chan error, 1) // the writer ends when the kernel has finished, even if its caller has given up
	go func() { written <- c.writeCPUSet("cpuset.mems", nodes.String()) }()
	select {
	case err = <-written:
	case <-ctx.Done():
		err = fmt.Errorf(
			"writing cpuset.mems %s of cgroup %s: the kernel is still migrating pages and will continue: %w",
			nodes, c.Path, ctx.Err())
	}
	if err != nil {
		return effective, err
	}
	if effective, err = c.EffectiveMems(); err == nil && !effective.Equal(nodes) {
		err = &NotEffectiveError{c.Path, "cpuset.mems", nodes.String(), effective.String()}
	}
	return effective, err
}

// writeCPUSet refuses the empty set: the kernel answers it with ENOSPC while
// tasks are inside, and Go's empty write would not even reach the kernel.
func (c Cgroup) writeCPUSet(name, list string) error {
	if list == "" {
		return fmt.Errorf(
			"%s of cgroup %s cannot be emptied while tasks are inside; write all ids that the host has instead", name,
			c.Path)
	}
	err := writeKernelFile(c.file(name), list+"\n")
	if err == nil {
		return nil
	}
	hint := ""
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		hint = "; not all of these exist on this host"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		hint = "; run as root"
	case errors.Is(err, unix.EBUSY):
		hint = "; an exclusive cpuset partition holds some of these"
	}
	return fmt.Errorf("writing %q to %s of cgroup %s: %w%s", list, name, c.Path, err, hint)
}

// SetMems writes cpuset.mems of every thread group of a VM. Widening copies
// nothing; narrowing migrates the pages outside the new nodes (see
// Cgroup.SetMems). Groups above are left alone: libvirt rewrites the top group
// when it restarts, but does not touch the thread groups. SetMems stops at the
// first failure and names the groups already written.
func (g GuestCgroup) SetMems(ctx context.Context, nodes topology.NodeSet) error {
	var done []string
	for _, c := range g.ThreadGroups() {
		if _, err := c.SetMems(ctx, nodes); err != nil {
			return fmt.Errorf("%w; already written: %s", err, orNone(done))
		}
		done = append(done, c.Name())
	}
	if len(done) == 0 {
		return fmt.Errorf("cgroup %s has no thread groups (emulator, vcpuN)", g.Threads.Path)
	}
	return nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func inOrder[K cmp.Ordered](groups map[K]Cgroup) []Cgroup {
	var list []Cgroup
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		list = append(list, groups[k])
	}
	return list
}

func parseInts(data []byte) ([]int, error) {
	var ids []int
	for field := range strings.FieldsSeq(string(data)) {
		id, err := strconv.Atoi(field)
		if err != nil {
			return ids, fmt.Errorf("%q is not an id", abbreviate(field))
		}
		ids = append(ids, id)
	}
	return ids, nil
}
