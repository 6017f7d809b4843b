package linux

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Launch is a program to run, with the CPUs and nodes to restrict it to.
type Launch struct {
	Args []string // the program first, looked up in PATH
	Env  []string
	CPUs topology.CPUSet // empty: this program's own CPUs
	Mode guest.MemoryMode
	// Nodes of the memory policy. Modes none and restrictive set no policy: use
	// a cgroup of its own then (CreateOwn and Adopt before Exec).
	Nodes topology.NodeSet
	Group *Cgroup // working directory; nil: this program's own
}

// Exec replaces this program by the one to launch; it only returns on failure.
// Affinity and memory policy belong to a thread and are inherited over
// execve(2), which ends every other thread: so one thread sets both and
// executes.
func (l Launch) Exec() error {
	if len(l.Args) == 0 {
		return errors.New("no program to run was given")
	}
	path, err := exec.LookPath(l.Args[0])
	if err != nil {
		return fmt.Errorf("running %s: %w", l.Args[0], err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.Group != nil {
		if err := l.Group.Adopt(syscall.Getpid()); err != nil {
			return err
		}
	}
	if !l.CPUs.IsEmpty() {
		if err := SetAffinity(0, l.CPUs); err != nil {
			return err
		}
	}
	if err := setThreadPolicy(l.Mode, l.Nodes); err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, l.Args, l.Env))
}
