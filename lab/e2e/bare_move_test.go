package e2e_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestBareMove is the baseline for the mover. It runs inside the lab, as a
// program: BARE_MOVE="PID NODE" moves the largest mapping of a process with
// move_pages alone, 64 MiB a call, and prints bytes and nanoseconds.
func TestBareMove(t *testing.T) {
	order, inside := os.LookupEnv("BARE_MOVE")
	if !inside {
		t.Skip("is the loop that TestLabMoverRate runs inside the lab")
	}
	var pid int
	var node int32
	if _, err := fmt.Sscan(order, &pid, &node); err != nil {
		t.Fatal(err)
	}
	ranges, _, err := linux.Live.MemoryRanges(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	r := slices.MaxFunc(ranges, func(a, b inventory.MemoryRange) int { return cmp.Compare(a.Size, b.Size) })
	const page, chunk, moveAll = 4096, 64 << 20, 4
	moved := 0
	var took time.Duration
	for at := r.Address; at < r.Address+uint64(r.Size); at += chunk {
		pages := int(min(chunk, r.Address+uint64(r.Size)-at) / page)
		addresses, nodes, statuses := make([]uint64, pages), make([]int32, pages), make([]int32, pages)
		for i := range addresses {
			addresses[i], nodes[i] = at+uint64(i)*page, node
		}
		begin := time.Now()
		_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, uintptr(pid), uintptr(pages),
			uintptr(unsafe.Pointer(&addresses[0])), uintptr(unsafe.Pointer(&nodes[0])),
			uintptr(unsafe.Pointer(&statuses[0])), moveAll)
		took += time.Since(begin)
		if errno != 0 {
			t.Fatalf("moving pages of process %d at %#x to node %d: %v", pid, at, node, errno)
		}
		for _, s := range statuses {
			if s == node {
				moved++
			}
		}
	}
	fmt.Printf("bare: %d %d\n", topology.Bytes(moved)*page, took.Nanoseconds())
}
