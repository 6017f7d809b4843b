package linux

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Modes of set_mempolicy(2) and mbind(2) (include/uapi/linux/mempolicy.h).
const (
	mpolDefault       = 0
	mpolPreferred     = 1
	mpolBind          = 2
	mpolInterleave    = 3
	mpolLocal         = 4
	mpolPreferredMany = 5 // since Linux 5.15
)

// policyOf gives the kernel's mode for a memory mode. None and restrictive set
// no policy: nodes then only limit through a cpuset.
func policyOf(mode guest.MemoryMode, nodes topology.NodeSet) (kernel int, mask []uint64, err error) {
	switch mode {
	case guest.MemoryNone, guest.MemoryRestrictive:
		return mpolDefault, nil, nil
	case guest.MemoryStrict:
		kernel = mpolBind
	case guest.MemoryInterleave:
		kernel = mpolInterleave
	case guest.MemoryPreferred:
		kernel = mpolPreferred
		if nodes.Len() > 1 {
			kernel = mpolPreferredMany
		}
	default:
		return 0, nil, fmt.Errorf("memory mode %q; allowed: none, preferred, strict, interleave, restrictive", mode)
	}
	if nodes.IsEmpty() {
		return 0, nil, fmt.Errorf("memory mode %s needs at least one node", mode)
	}
	mask = nodeMask(nodes)
	fillMask(mask, nodes)
	return kernel, mask, nil
}

// setThreadPolicy sets the memory policy of the calling thread, which a program
// that it executes inherits. The caller must lock the thread
// (runtime.LockOSThread).
func setThreadPolicy(mode guest.MemoryMode, nodes topology.NodeSet) error {
	kernel, mask, err := policyOf(mode, nodes)
	if err != nil {
		return err
	}
	pointer, bits := maskArgument(mask)
	_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(kernel), uintptr(pointer), bits)
	runtime.KeepAlive(mask)
	if errno != 0 {
		return fmt.Errorf("setting memory policy %s on nodes %s: %w%s", mode, nodes, errno, policyHint(errno))
	}
	return nil
}

// setRangePolicy sets the policy of memory that this program has mapped.
// Allocated pages stay where they are.
func setRangePolicy(memory []byte, mode guest.MemoryMode, nodes topology.NodeSet) error {
	kernel, mask, err := policyOf(mode, nodes)
	if err != nil {
		return err
	}
	if kernel == mpolDefault {
		// A fresh mapping has no policy, so to the kernel removing it is no
		// change and the file keeps its policy: set another policy first.
		if err := mbind(memory, mpolLocal, nil); err != nil {
			return err
		}
	}
	if err := mbind(memory, kernel, mask); err != nil {
		return fmt.Errorf("setting memory policy %s on nodes %s: %w", mode, nodes, err)
	}
	return nil
}

func mbind(memory []byte, kernel int, mask []uint64) error {
	pointer, bits := maskArgument(mask)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)),
		uintptr(kernel), uintptr(pointer), bits, 0)
	runtime.KeepAlive(mask)
	if errno != 0 {
		return fmt.Errorf("mbind: %w%s", errno, policyHint(errno))
	}
	return nil
}

func maskArgument(mask []uint64) (unsafe.Pointer, uintptr) {
	if len(mask) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&mask[0]), maskBits(mask)
}

func policyHint(errno unix.Errno) string {
	if errors.Is(errno, unix.EINVAL) {
		return "; the nodes have no memory, this program's own cpuset leaves them out, or the kernel does not know " +
			"the mode (several preferred nodes need Linux 5.15)"
	}
	return ""
}

const bitsPerWord = 64

// nodeMask returns an empty bit mask with room for the nodes.
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

// maskBits is the maxnode argument of the memory policy calls: the kernel uses one bit less than this number.
func maskBits(mask []uint64) uintptr { return uintptr(len(mask)*bitsPerWord + 1) }
