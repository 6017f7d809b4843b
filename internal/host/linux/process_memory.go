package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

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

// zero returns false where the kernel does not say: the page then counts as
// hidden.
func (p process) zero(frame uint64) bool {
	if frame == 0 {
		return false
	}
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
