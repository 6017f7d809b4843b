package guestagent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// kernel is what the agent reads and changes of the guest's kernel.
type kernel interface {
	read(path string) (string, error)
	write(path, text string) error
	mkdir(path string) error
	list(path string) ([]string, error)
	// moveThreads moves kernel threads that may run elsewhere away from CPUs.
	moveThreads(from, to guest.VCPUs)
	// stand runs this thread on a vCPU, and leave on its home again; goHome does so for all threads of this program.
	// runFor runs this thread for a time, without sleep.
	stand(id int)
	runFor(d time.Duration)
	leave()
	goHome()
	mountCgroup(path string) error
	// ownTime is for how long this program has run.
	ownTime() time.Duration
}

// linux is the kernel that the program runs on.
type linux struct {
	// open are files that are read again and again: one system call each time.
	open map[string]int
	text []byte
}

func newLinux() *linux {
	return &linux{open: map[string]int{}, text: make([]byte, 16<<10)}
}

// often reports whether a file is read all the time.
func often(path string) bool {
	switch path {
	case "/proc/loadavg", "/proc/stat", "/proc/schedstat", pressureFile, cpuFolder + "present", cpuFolder + "online":
		return true
	}
	return strings.HasSuffix(path, "/cpuset.cpus.effective")
}

func (k *linux) read(path string) (string, error) {
	if !often(path) {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
	fd, ok := k.open[path]
	if !ok {
		var err error
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return "", fmt.Errorf("opening %s: %w", path, err)
		}
		k.open[path] = fd
	}
	for length := 0; ; {
		n, err := unix.Pread(fd, k.text[length:], int64(length))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // its cgroup is gone: another one may have its name
			delete(k.open, path)
			_ = unix.Close(fd)
			return "", fmt.Errorf("reading %s: %w", path, err)
		case n == 0: // the kernel may give long files a page at a time
			return strings.TrimSpace(string(k.text[:length])), nil
		default:
			if length += n; length == len(k.text) {
				k.text = append(k.text, make([]byte, length)...)
			}
		}
	}
}

// write writes a file without the runtime's poller: package os registers each file with it, by system calls of its own.
func (*linux) write(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	for rest := []byte(text); len(rest) > 0 && err == nil; {
		var n int
		switch n, err = unix.Write(fd, rest); {
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && n == 0:
			err = io.ErrShortWrite
		}
		rest = rest[max(0, n):]
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func (*linux) mkdir(path string) error {
	return os.MkdirAll(path, 0o755)
}

func (*linux) list(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (*linux) mountCgroup(path string) error { return unix.Mount("cgroup2", path, "cgroup2", 0, "") }

func (*linux) ownTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Flags of a task in the 9th field of /proc/PID/stat (include/linux/sched.h).
const (
	kernelThread = 0x00200000 // PF_KTHREAD
	fixedThread  = 0x04000000 // PF_NO_SETAFFINITY
)

func (*linux) stand(id int) {
	var one unix.CPUSet
	one.Set(id)
	_ = unix.SchedSetaffinity(0, &one) // a vCPU that is gone again needs nothing
}

func (*linux) runFor(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

func (*linux) leave() { stayHome(0) }

// home is the vCPU on which the program runs. A guest always has it, since its kernel cannot free it.
const home = 0

// stayHome lets a thread run on the home vCPU alone. An error leaves it where it is, which costs time only.
func stayHome(tid int) {
	var only unix.CPUSet
	only.Set(home)
	_ = unix.SchedSetaffinity(tid, &only)
}

// goHome lets the threads of this program, and with them those that they make, run on the home vCPU alone. Kernels
// before 6.2 forget that when the program changes its cgroup, or the CPUs of its cgroup change (cpuset_attach and
// update_tasks_cpumask in kernel/cgroup/cpuset.c).
//
// The Go runtime's threads wake each other several times at each look. On another vCPU, each time is an interrupt
// between vCPUs, for which the guest stops and the hypervisor works, and the look counts a thread that is still awake.
func (*linux) goHome() {
	for _, tid := range ownThreads() {
		stayHome(tid)
	}
}

// ownThreads are the threads of this program; none if /proc cannot be read.
func ownThreads() (tids []int) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// Priorities among real-time threads (SCHED_FIFO).
const (
	agentPriority   = 1
	runtimePriority = 2
)

// arrangeThreads runs the threads of this program, and with them those that they make, before those of other programs:
// the vCPUs that the agent asks for are needed most when all are busy.
//
// The Go runtime's threads come before the agent's own thread: else one of them would wait for it at each look, and
// count as a thread that waits for a vCPU.
func arrangeThreads() error {
	var errs []error
	for _, tid := range ownThreads() {
		fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: runtimePriority}
		if tid == unix.Gettid() {
			fifo.Priority = agentPriority
		}
		errs = append(errs, unix.SchedSetAttr(tid, &fifo, 0))
	}
	return errors.Join(errs...)
}

func (k *linux) moveThreads(from, to guest.VCPUs) {
	names, err := k.list("/proc")
	if err != nil {
		return
	}
	var target unix.CPUSet
	for _, id := range to.IDs() {
		target.Set(id)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := k.read(filepath.Join("/proc", name, "stat"))
		if err != nil || !movable(stat) {
			continue
		}
		var now unix.CPUSet
		if unix.SchedGetaffinity(pid, &now) != nil {
			continue
		}
		for _, id := range from.IDs() {
			if now.IsSet(id) {
				_ = unix.SchedSetaffinity(pid, &target) // a thread that cannot move is seen by the check for idleness
				break
			}
		}
	}
}

// movable reports whether a line of /proc/PID/stat is that of a kernel thread whose
// affinity may be changed.
func movable(stat string) bool {
	flags, ok := taskFlags(stat)
	return ok && flags&kernelThread != 0 && flags&fixedThread == 0
}

// mask writes a set as the kernel's masks are written: groups of 32 bits.
func mask(s guest.VCPUs) string {
	var groups []string
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == 0 && len(groups) == 0 && i > 0 {
			continue
		}
		groups = append(groups, fmt.Sprintf("%08x,%08x", s[i]>>32, s[i]&0xffffffff))
	}
	return strings.Join(groups, ",")
}
