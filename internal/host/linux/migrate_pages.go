package linux

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// MigratePages moves all pages of a process that lie on some nodes to others
// (migrate_pages(2)). It overrides the process's cpuset, and sees pages that
// move_pages(2) does not (MoveResult.Hidden); but it takes the whole process,
// cannot be paced or cancelled, and with several nodes goes by their order:
// the n-th of from moves to the n-th of to. Nodes in both sets are left alone
// if the sets differ in size. notMoved counts pages that stayed; look again for the truth.
func MigratePages(pid int, from, to topology.NodeSet) (notMoved uint64, err error) {
	if from.IsEmpty() || to.IsEmpty() {
		return 0, fmt.Errorf("migrating pages of process %d from nodes %q to nodes %q: both must be given", pid, from, to)
	}
	old, fresh := nodeMask(from.Union(to)), nodeMask(from.Union(to))
	fillMask(old, from)
	fillMask(fresh, to)
	count, _, errno := unix.Syscall6(unix.SYS_MIGRATE_PAGES, uintptr(pid), maskBits(old),
		uintptr(unsafe.Pointer(&old[0])), uintptr(unsafe.Pointer(&fresh[0])), 0, 0)
	if errno == 0 {
		return uint64(count), nil
	}
	hint := ""
	switch {
	case errors.Is(errno, unix.EINVAL):
		hint = "; these nodes have no memory, or this program's own cpuset leaves them out"
	case errors.Is(errno, unix.EPERM):
		hint = "; this needs CAP_SYS_NICE: run as root"
	case errors.Is(errno, unix.ESRCH):
		hint = "; the process has ended"
	case errors.Is(errno, unix.ENOMEM):
		hint = "; there is no free memory there"
	}
	return 0, fmt.Errorf("migrating pages of process %d from nodes %s to nodes %s: %w%s", pid, from, to, errno, hint)
}

const bitsPerWord = 64

// nodeMask makes an empty bit mask that has room for the nodes.
func nodeMask(nodes topology.NodeSet) []uint64 {
	highest := 0
	for node := range nodes.All() {
		highest = int(node)
	}
	return make([]uint64, highest/bitsPerWord+1)
}

func fillMask(mask []uint64, nodes topology.NodeSet) {
	for node := range nodes.All() {
		mask[int(node)/bitsPerWord] |= 1 << (int(node) % bitsPerWord)
	}
}

// maskBits is the maxnode argument of the memory policy calls: they use one bit less than told.
func maskBits(mask []uint64) uintptr { return uintptr(len(mask)*bitsPerWord + 1) }
