package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// process is the memory of a running process, by its id.
type process int

func (p process) query(addresses []uint64, statuses []int32) error {
	return p.orEnding(queryPages(int(p), addresses, statuses))
}

func (p process) move(addresses []uint64, nodes, statuses []int32) error {
	return p.orEnding(movePages(int(p), addresses, nodes, statuses, moveAll))
}

// orEnding adds ESRCH to the EINVAL of a process that is ending. Such a process
// is still listed, but it has given its memory back (exit_mm in kernel/exit.c),
// and move_pages(2) reports a process without memory by EINVAL
// (find_mm_struct in mm/migrate.c). /proc/PID/statm is then all zeros.
func (p process) orEnding(err error) error {
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	statm, unread := os.ReadFile(Live.proc(int(p), "statm"))
	if Gone(unread) || unread == nil && bytes.HasPrefix(statm, []byte("0 ")) {
		return fmt.Errorf("%w (%w)", unix.ESRCH, err)
	}
	return err
}

// pagemap reads /proc/PID/pagemap. Without permission it reads nothing: the
// page then counts as absent.
func (p process) pagemap(address uint64, entries []byte) (int, error) {
	file, err := os.Open(Live.proc(int(p), "pagemap"))
	if errors.Is(err, os.ErrPermission) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	n, err := file.ReadAt(entries, int64(address/uint64(smallPage)*pagemapEntry))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// zeroPage is KPF_ZERO_PAGE of /proc/kpageflags
// (Documentation/admin-guide/mm/pagemap.rst), huge zero pages included.
const zeroPage = 1 << 24

// zero compares with the frames that this process itself has of memory that it only read:
// the kernel has one zero page, and one huge one as long as any process has it. To ask
// /proc/kpageflags for each page takes longer than to copy it: once NUMA balancing has run,
// most pages of a VM are inaccessible.
func (p process) zero(frame uint64) bool {
	z := zeroFrames()
	return frame != 0 && (frame == z.small || z.huge != 0 && frame-z.huge < uint64(hugeSpan/smallPage))
}

// zeros are page frames of memory that was only read; 0: not known. A page then counts as hidden.
type zeros struct{ small, huge uint64 }

// zeroFrames finds them once: this process has the huge zero page from then on, so that it stays.
var zeroFrames = sync.OnceValue(func() zeros {
	return zeros{small: zeroFrame(unix.MADV_NOHUGEPAGE), huge: zeroFrame(unix.MADV_HUGEPAGE)}
})

// zeroFrame returns the first frame of the zero page that the kernel gives to memory with an advice; 0: none, or
// this process may not know.
func zeroFrame(advice int) uint64 {
	const access, kind = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	memory, err := unix.Mmap(-1, 0, int(2*hugeSpan), access, kind)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Munmap(memory) }() // it exists
	if err := unix.Madvise(memory, advice); err != nil {
		return 0
	}
	const span = uint64(hugeSpan)
	at := (uint64(uintptr(unsafe.Pointer(&memory[0]))) + span - 1) / span * span
	self := process(unix.Getpid())
	var entry [pagemapEntry]byte
	if self.touch([]uint64{at}) != 1 {
		return 0
	}
	if n, err := self.pagemap(at, entry[:]); err != nil || n != len(entry) {
		return 0
	}
	frame := binary.NativeEndian.Uint64(entry[:])
	if frame &= pagemapFrame; frame == 0 || !isZeroPage(frame) {
		return 0
	}
	return frame
}

// isZeroPage asks the kernel for the flags of a frame.
func isZeroPage(frame uint64) bool {
	file, err := os.Open(Live.path("proc", "kpageflags"))
	if err != nil {
		return false
	}
	defer file.Close()
	var flags [8]byte
	_, err = file.ReadAt(flags[:], int64(frame)*int64(len(flags)))
	return err == nil && binary.NativeEndian.Uint64(flags[:])&zeroPage != 0
}

// touch reads through process_vm_readv(2), many addresses a call. An unreadable
// address ends a call, and the next call begins behind it.
func (p process) touch(addresses []uint64) (read int) {
	const atOnce = 512 // below IOV_MAX
	into := make([]byte, atOnce)
	for len(addresses) > 0 {
		remote := make([]unix.RemoteIovec, min(atOnce, len(addresses)))
		for i := range remote {
			remote[i] = unix.RemoteIovec{Base: uintptr(addresses[i]), Len: 1}
		}
		n, err := unix.ProcessVMReadv(int(p), []unix.Iovec{{Base: &into[0], Len: uint64(len(remote))}}, remote, 0)
		if err != nil {
			n = 0
		}
		read += n
		if n < len(remote) {
			n++ // past the failed address
		}
		addresses = addresses[n:]
	}
	return read
}
