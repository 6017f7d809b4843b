package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrPolicyFixed means that a mapping's memory policy cannot be set from
// outside its process: the memory is not a shared memory file of small pages.
var ErrPolicyFixed = errors.New("only memfd and other shared memory accepts a policy from another process")

// SetFilePolicy gives the memory of one mapping of another process a new
// policy, for pages not yet allocated. The policy of shared memory belongs to
// its file and not to the processes that map it: so SetFilePolicy opens the
// file through the other process, maps it here too, and calls mbind(2) on that.
// Allocated pages stay; Mover moves them. The nodes are cut to this program's
// own cpuset.
func (r Root) SetFilePolicy(pid int, address uint64, mode guest.MemoryMode, nodes topology.NodeSet) error {
	where := fmt.Sprintf("policy of process %d at %#x", pid, address)
	area, err := r.areaAt(pid, address)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if area.Inode == 0 || backing(Mapping{File: area.Path}, area) != BackingMemfd {
		return fmt.Errorf("%s (%s): %w", where, orAnonymous(area.Path), ErrPolicyFixed)
	}
	file, err := r.openMapped(pid, area)
	if err != nil {
		return fmt.Errorf("%s: opening its file: %w", where, err)
	}
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), int64(area.Offset), int(area.End-area.Start),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("%s: mapping its file: %w", where, err)
	}
	defer unix.Munmap(memory) //nolint:errcheck // it was mapped above
	if err := setRangePolicy(memory, mode, nodes); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

func orAnonymous(path string) string {
	if path == "" {
		return BackingAnonymous
	}
	return path
}

// areaAt returns the mapping that starts at an address.
func (r Root) areaAt(pid int, address uint64) (Area, error) {
	areas, err := r.Maps(pid)
	if err != nil {
		return Area{}, err
	}
	for _, a := range areas {
		if a.Start == address {
			return a, nil
		}
	}
	return Area{}, errors.New("no mapping starts there; observe again")
}

// openMapped opens the file behind a mapping: through map_files, or where that
// is not allowed, through a descriptor by which the process itself has it open.
func (r Root) openMapped(pid int, a Area) (*os.File, error) {
	file, err := os.OpenFile(r.proc(pid, "map_files", fmt.Sprintf("%x-%x", a.Start, a.End)), os.O_RDWR, 0)
	if err == nil {
		return file, nil
	}
	files, err2 := r.OpenFiles(pid)
	if err2 != nil {
		return nil, errors.Join(err, err2)
	}
	for _, f := range files {
		if f.Path != a.Path {
			continue
		}
		file, err2 := os.OpenFile(r.proc(pid, "fd", strconv.Itoa(f.FD)), os.O_RDWR, 0)
		if err2 != nil {
			continue
		}
		if info, err2 := file.Stat(); err2 == nil && inodeOf(info) == a.Inode {
			return file, nil
		}
		file.Close()
	}
	return nil, fmt.Errorf("%w; the process has no descriptor of it open either", err)
}

func inodeOf(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
