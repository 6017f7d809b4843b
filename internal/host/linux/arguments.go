package linux

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"
)

// ErrNoAnswer means that the kernel did not return the arguments of a process
// in time: a thread of the process holds its memory map (mmap_lock), for
// example while it waits for a file system that hangs.
var ErrNoAnswer = errors.New("the kernel does not give its arguments and mappings: a thread of the process is " +
	"blocked, perhaps on a file system that hangs")

// argumentsTime limits the wait for the arguments of one process. They are
// there at once unless the process's memory map is locked, which takes some
// milliseconds while a thread maps memory, and seconds where an emulated host
// allocates the memory of a VM.
const argumentsTime = 5 * time.Second

// Arguments reads the arguments of processes (/proc/PID/cmdline). That read can
// wait forever, and no signal but SIGKILL ends it. So each runs in a goroutine
// of its own, which is abandoned after some seconds; a process whose read has not
// returned is not read again, so that repeated observations do not fill the
// program with blocked threads. It is safe for concurrent use.
type Arguments struct {
	root  Root
	limit time.Duration

	mu      sync.Mutex
	pending map[int]bool // reads that were abandoned and have not returned, by process
}

// NewArguments returns a reader of the processes below a root.
func NewArguments(r Root) *Arguments {
	return &Arguments{root: r, limit: argumentsTime, pending: map[int]bool{}}
}

// Of returns the arguments of a process, the program's name first. The error is
// ErrNoAnswer if the kernel does not return them in time.
func (a *Arguments) Of(pid int) ([]string, error) {
	type result struct {
		args []string
		err  error
	}
	a.mu.Lock()
	stuck := a.pending[pid]
	a.mu.Unlock()
	if stuck {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoAnswer)
	}
	done := make(chan result, 1)
	go func() {
		args, err := a.root.args(pid)
		a.mu.Lock()
		defer a.mu.Unlock()
		done <- result{args, err}
		delete(a.pending, pid)
	}()
	timer := time.NewTimer(a.limit)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.args, r.err
	case <-timer.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case r := <-done: // it returned just now
		return r.args, r.err
	default:
	}
	a.pending[pid] = true
	return nil, fmt.Errorf("process %d: %w", pid, ErrNoAnswer)
}

// answers returns ErrNoAnswer if reading the memory map of a process would
// block, as far as can be known beforehand.
func (r Root) answers(pid int) error {
	if _, err := NewArguments(r).Of(pid); errors.Is(err, ErrNoAnswer) {
		return err
	}
	return nil
}

// mayBeQEMU reports whether a process may be a QEMU by its program's file,
// which is read without its memory map. It is true where the file is unknown: a
// kernel thread has none, and another user's may not be read.
func (r Root) mayBeQEMU(pid int) bool {
	exe, err := os.Readlink(r.proc(pid, "exe"))
	name := path.Base(exe)
	return err != nil || strings.Contains(name, "qemu") || strings.Contains(name, "kvm")
}
