package linux

import (
	"context"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// copyTrial is how much memory shows the rate of copying: some milliseconds on a server. It is moved in slices.
const (
	copyTrial = 8 * topology.MiB
	copySlice = 2 * topology.MiB
)

// CopyRate measures how fast one thread moves memory from a node to another, in bytes a second, with pages of this
// program itself. They are small pages; huge pages move faster. The fastest slice counts: in others the thread may have
// waited for a CPU.
func CopyRate(ctx context.Context, from, to topology.NodeID) (topology.Bytes, error) {
	fail := func(err error) (topology.Bytes, error) {
		return 0, fmt.Errorf("measuring how fast memory moves from node %d to node %d: %w", from, to, err)
	}
	memory, err := unix.Mmap(-1, 0, int(copyTrial), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fail(fmt.Errorf("mmap: %w", err))
	}
	defer func() { _ = unix.Munmap(memory) }()     // it fails for a wrong range only
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // a kernel without huge pages refuses it
	source := topology.SetOf(from)
	if err := setRangePolicy(memory, guest.MemoryStrict, source); err != nil {
		return fail(err)
	}
	step := os.Getpagesize()
	for at := 0; at < len(memory); at += step {
		memory[at] = 1
	}
	var fastest float64
	for at := topology.Bytes(0); at < copyTrial; at += copySlice {
		own := inventory.MemoryRange{Address: uint64(uintptr(unsafe.Pointer(&memory[at]))), Size: copySlice}
		began := time.Now()
		result, err := Mover{PID: os.Getpid()}.Move(ctx, own, topology.SetOf(to))
		took := time.Since(began)
		if err != nil {
			return fail(err)
		}
		if result.Moved < copySlice/2 {
			return fail(fmt.Errorf("only %v of %v moved: %v", result.Moved, copySlice, result.Why))
		}
		fastest = max(fastest, float64(result.Moved)/took.Seconds())
	}
	return topology.Bytes(fastest), nil
}
