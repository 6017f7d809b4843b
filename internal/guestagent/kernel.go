package guestagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	mountCgroup(path string) error
}

// linux is the kernel that the program runs on.
type linux struct{}

func (linux) read(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

func (linux) write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func (linux) mkdir(path string) error {
	return os.MkdirAll(path, 0o755)
}

func (linux) list(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (linux) mountCgroup(path string) error { return unix.Mount("cgroup2", path, "cgroup2", 0, "") }

// Flags of a task in the 9th field of /proc/PID/stat (include/linux/sched.h).
const (
	kernelThread = 0x00200000 // PF_KTHREAD
	fixedThread  = 0x04000000 // PF_NO_SETAFFINITY
)

func (k linux) moveThreads(from, to guest.VCPUs) {
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
	_, rest, ok := strings.Cut(stat, ") ") // the name before it may hold spaces
	fields := strings.Fields(rest)
	if !ok || len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&kernelThread != 0 && flags&fixedThread == 0
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
