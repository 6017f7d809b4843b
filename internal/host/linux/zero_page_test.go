package linux

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Memory that was read and never written is the kernel's shared zero page,
// which is in the page table and never moves: it is not a page of the process.
// This test also runs in the lab, by its name, where every source that it needs
// must be present.
func TestLabZeroPagesAreAbsentAndNotHidden(t *testing.T) {
	needMovePages(t)
	if flags, err := os.Open("/proc/kpageflags"); err != nil && os.Getenv(labVariable) == "1" {
		t.Fatal(err)
	} else if err != nil {
		t.Skipf("the kernel does not say which page is the zero page: %v; run as root", err)
	} else {
		flags.Close()
	}
	const size = 64 * 4096
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	var sum byte
	for i := 0; i < size; i += 4096 {
		sum += memory[i]
	}
	memory[0] = sum + 1 // one page is really there
	r, err := Mover{
		PID: unix.Getpid(),
	}.Move(t.Context(), inventory.MemoryRange{Address: addressOf(memory), Size: size, PageSize: 4 * topology.KiB},
		nodes("0"))
	if err != nil || r.Hidden != 0 || r.Failed != 0 || r.Absent != size-4096 {
		t.Errorf("%+v, %v: want all but one page absent", r, err)
	}
}

// A transparent huge page of which nothing was written is the kernel's huge zero page.
func TestLabHugeZeroPagesAreAbsentAndNotHidden(t *testing.T) {
	needMovePages(t)
	if zeroFrames().huge == 0 {
		t.Skip("the kernel gives no huge zero page, or does not say which it is")
	}
	const size = 3 << 21
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil {
		t.Fatal(err)
	}
	var sum byte
	for i := 0; i < size; i += 4096 {
		sum += memory[i]
	}
	r, err := Mover{PID: unix.Getpid()}.Move(t.Context(), inventory.MemoryRange{Address: addressOf(memory), Size: size,
		PageSize: 4 * topology.KiB}, nodes("0"))
	if err != nil || sum != 0 || r.Hidden != 0 || r.Failed != 0 || r.Absent != size {
		t.Errorf("%+v, %v: want all pages absent", r, err)
	}
}
