package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// moveAll is MPOL_MF_MOVE_ALL: pages that other processes map too (vhost-user,
// virtiofsd, KSM) move as well. Needs CAP_SYS_NICE.
const moveAll = 1 << 2

// unwritten marks status entries that the kernel did not reach: it stops at the
// first batch of pages with a failure.
const unwritten int32 = -1 << 31

// noPage reports the statuses of addresses without a page: not touched yet,
// swapped out, or the shared zero page.
func noPage(status int32) bool {
	return status == -int32(unix.ENOENT) || status == -int32(unix.EFAULT)
}

// queryPages asks on which nodes the pages of a process are (move_pages(2)
// without nodes): statuses[i] becomes a node or a negative errno. The kernel
// looks up 16 addresses each time it takes the process's mmap lock.
func queryPages(pid int, addresses []uint64, statuses []int32) error {
	return movePages(pid, addresses, nil, statuses, 0)
}

// movePages moves pages[i] to nodes[i]. A positive count of pages that did not
// move is no error here: a query gives the state of each.
func movePages(pid int, addresses []uint64, nodes []int32, statuses []int32, flags int) error {
	if len(addresses) == 0 {
		return nil
	}
	if len(statuses) != len(addresses) || (nodes != nil && len(nodes) != len(addresses)) {
		panic("move_pages: addresses, nodes and statuses differ in length")
	}
	var target unsafe.Pointer
	if nodes != nil {
		target = unsafe.Pointer(&nodes[0])
	}
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, uintptr(pid), uintptr(len(addresses)),
		uintptr(unsafe.Pointer(&addresses[0])), uintptr(target), uintptr(unsafe.Pointer(&statuses[0])), uintptr(flags))
	runtime.KeepAlive(addresses)
	if errno != 0 {
		return errno
	}
	return nil
}

// MoveError says why the kernel refused to query or move pages. It wraps the
// errno.
type MoveError struct {
	PID     int
	Address uint64
	Nodes   topology.NodeSet // empty for a query
	Err     error
}

func (e *MoveError) Unwrap() error { return e.Err }

func (e *MoveError) Error() string {
	what := fmt.Sprintf("looking up pages of process %d at %#x", e.PID, e.Address)
	if !e.Nodes.IsEmpty() {
		what = fmt.Sprintf("moving pages of process %d at %#x to nodes %s", e.PID, e.Address, e.Nodes)
	}
	return what + ": " + e.Err.Error() + e.advice()
}

func (e *MoveError) advice() string {
	switch {
	case errors.Is(e.Err, unix.EACCES):
		return "; its cpuset does not allow these nodes: widen cpuset.mems of its groups first"
	case errors.Is(e.Err, unix.ENOMEM):
		return "; no free memory is left there (or no free huge page), or this program's own cpuset excludes the " +
			"nodes: free some, or choose other nodes"
	case errors.Is(e.Err, unix.EPERM):
		return "; this needs CAP_SYS_NICE and the right to trace the process: run as root"
	case errors.Is(e.Err, unix.ESRCH):
		return "; the process has ended"
	case errors.Is(e.Err, unix.ENODEV):
		return "; one of the nodes has no memory"
	}
	return ""
}

// smallPage is the kernel's base page size.
var smallPage = topology.Bytes(os.Getpagesize())
