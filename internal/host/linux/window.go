package linux

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// addressSpace is access to a process's memory: process is the real one.
type addressSpace interface {
	// query returns where pages are; see queryPages.
	query(addresses []uint64, statuses []int32) error
	// move moves pages; see movePages.
	move(addresses []uint64, nodes, statuses []int32) error
	// pagemap reads page table entries from an address on, and returns how many
	// bytes it read.
	pagemap(address uint64, entries []byte) (int, error)
	// zero reports whether a page frame is the kernel's zero page.
	zero(frame uint64) bool
	// touch reads a byte at each address and returns how many it could read.
	touch(addresses []uint64) int
}

// window is a stretch of a process's memory with the location of each page.
type window struct {
	pid       int
	space     addressSpace
	step      topology.Bytes // between addresses
	addresses []uint64
	statuses  []int32 // node, or negative errno
	hidden    []bool  // in the page table though the status says absent
}

// slide sets the window on another stretch, with the same buffers.
func (w *window) slide(address uint64, pages int) {
	w.addresses, w.statuses, w.hidden = sized(w.addresses, pages), sized(w.statuses, pages), sized(w.hidden, pages)
	for i := range w.addresses {
		w.addresses[i] = address + uint64(i)*uint64(w.step)
	}
}

// sized returns a slice of that length, in the memory of s if that is large
// enough. Its content is undefined.
func sized[T any](s []T, length int) []T {
	if cap(s) < length {
		return make([]T, length)
	}
	return s[:length]
}

// query asks the kernel where the pages are.
func (w *window) query() error {
	clear(w.hidden)
	if err := w.space.query(w.addresses, w.statuses); err != nil {
		return &MoveError{PID: w.pid, Address: w.addresses[0], Err: err}
	}
	return nil
}

// pagemap entries (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapEntry   = 8
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1 // page frame number; 0 without CAP_SYS_ADMIN
)

// findHidden marks pages that the status calls absent but the page table has.
// move_pages(2) of Linux 6.1 to 6.4 reports entries that NUMA balancing has
// made inaccessible as absent; pagemap does not. pagemap also has the shared
// zero page, which stands for memory that was only read, and never moves.
func (w *window) findHidden() error {
	perStep := int(w.step / smallPage)
	isZero := lastKnown(w.space.zero)
	for i := 0; i < len(w.addresses); {
		if !noPage(w.statuses[i]) {
			i++
			continue
		}
		run := i
		for run < len(w.addresses) && noPage(w.statuses[run]) && (run-i+1)*perStep <= pagemapAtOnce {
			run++
		}
		run = max(run, i+1)
		entries := make([]byte, ((run-i-1)*perStep+1)*pagemapEntry)
		n, err := w.space.pagemap(w.addresses[i], entries)
		if err != nil {
			return &MoveError{PID: w.pid, Address: w.addresses[i], Err: err}
		}
		for k := i; k < run; k++ {
			if at := (k - i) * perStep * pagemapEntry; at+pagemapEntry <= n {
				entry := binary.NativeEndian.Uint64(entries[at:])
				w.hidden[k] = entry&pagemapPresent != 0 &&
					!(w.statuses[k] == -int32(unix.EFAULT) && isZero(entry&pagemapFrame))
			}
		}
		i = run
	}
	return nil
}

// lastKnown asks again only if the frame differs: memory that was only read is
// the same zero page everywhere.
func lastKnown(zero func(frame uint64) bool) func(uint64) bool {
	var last uint64
	var known bool
	return func(frame uint64) bool {
		if frame != last {
			last, known = frame, zero(frame)
		}
		return known
	}
}

// pagemapAtOnce bounds one read of pagemap, in entries.
const pagemapAtOnce = 64 << 10

// uncover makes hidden pages visible again: reading one byte of each through
// process_vm_readv(2) is a NUMA hinting fault, which makes the entry
// accessible. It reads only pages that are present, so it allocates nothing. It
// returns how many it read; query again for the result.
func (w *window) uncover() (read int) {
	var addresses []uint64
	for i, hidden := range w.hidden {
		if hidden {
			addresses = append(addresses, w.addresses[i])
		}
	}
	if len(addresses) == 0 {
		return 0
	}
	return w.space.touch(addresses)
}

// errnoName names a negative status: "EBUSY".
func errnoName(status int32) string {
	if status == unwritten {
		return "EAGAIN"
	}
	if name := unix.ErrnoName(unix.Errno(-status)); name != "" {
		return name
	}
	return strconv.Itoa(int(-status))
}

// pageSizeOf is the step between the addresses to query.
func pageSizeOf(r inventory.MemoryRange) topology.Bytes { return max(r.PageSize, smallPage) }
