package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Process is one running program.
type Process struct {
	PID        int
	StartTicks uint64
	Exe        string   // path of the program, empty if unreadable
	Args       []string // argument list, the program's name first
	// Memfds are its open memfd files, ascending by descriptor.
	Memfds []OpenFile
	// VFIO are its open vfio groups and devices ("/dev/vfio/12"). If it has
	// any, a device does DMA into the process, and its memory is pinned.
	VFIO []string
	// Locked and Pinned memory; see Status.
	Locked, Pinned topology.Bytes
}

// OpenFile is a descriptor of a process.
type OpenFile struct {
	FD   int
	Path string // target of the link in /proc/PID/fd: "/memfd:memory-backend-memfd (deleted)"
}

// ParseCmdline splits /proc/PID/cmdline. A program that overwrote its arguments
// may have removed the final NUL.
func ParseCmdline(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\x00")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}

// programs lists the processes that run a program: all but the kernel's own threads, which
// are most of the processes of an idle host.
func (r Root) programs() ([]int, error) {
	all, err := numberedEntries(r.path("proc"))
	if err != nil {
		return nil, err
	}
	threads := r.kernelThreads()
	return slices.DeleteFunc(all, func(pid int) bool { return threads[pid] }), nil
}

// kernelThreads returns the kernel's own threads: the children of kthreadd, which has process id 2 outside of
// containers. It is empty where the kernel does not list children (CONFIG_PROC_CHILDREN).
func (r Root) kernelThreads() map[int]bool {
	const kthreadd = 2
	if name, err := r.word("proc", strconv.Itoa(kthreadd), "comm"); err != nil || name != "kthreadd" {
		return nil
	}
	text, err := readFile(r.proc(kthreadd, "task", strconv.Itoa(kthreadd), "children"))
	if err != nil {
		return nil
	}
	threads := map[int]bool{kthreadd: true}
	for word := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			threads[pid] = true
		}
	}
	return threads
}

// Process reads one process from /proc.
func (r Root) Process(pid int) (Process, error) {
	p := Process{PID: pid}
	var err error
	if p.StartTicks, err = r.StartTicks(pid); err != nil {
		return Process{}, err
	}
	if p.Args, err = r.args(pid); err != nil {
		return Process{}, err
	}
	if p.Exe, err = os.Readlink(r.proc(pid, "exe")); err != nil && !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, fs.ErrPermission) {
		return Process{}, fmt.Errorf("reading the program of process %d: %w", pid, err)
	}
	files, err := r.OpenFiles(pid)
	if err != nil {
		return Process{}, err
	}
	for _, f := range files {
		switch {
		case strings.HasPrefix(f.Path, "/memfd:"):
			p.Memfds = append(p.Memfds, f)
		case isVFIO(f.Path):
			p.VFIO = append(p.VFIO, f.Path)
		}
	}
	status, err := r.Status(pid)
	p.Locked, p.Pinned = status.Locked, status.Pinned
	return p, err
}

func (r Root) args(pid int) ([]string, error) {
	data, err := os.ReadFile(r.proc(pid, "cmdline"))
	if err != nil {
		return nil, fmt.Errorf("reading the arguments of process %d: %w", pid, err)
	}
	return ParseCmdline(data), nil
}

// isVFIO recognizes groups, devices of the newer interface, and device handles;
// the container /dev/vfio/vfio alone pins nothing.
func isVFIO(path string) bool {
	return path == "anon_inode:[vfio-device]" || (strings.HasPrefix(path, "/dev/vfio/") && path != "/dev/vfio/vfio")
}

// OpenFiles lists the descriptors of a process with their targets, ascending;
// it leaves out those closed meanwhile.
func (r Root) OpenFiles(pid int) ([]OpenFile, error) {
	entries, err := os.ReadDir(r.proc(pid, "fd"))
	if err != nil {
		return nil, fmt.Errorf("listing the open files of process %d: %w", pid, err)
	}
	var files []OpenFile
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if path, err := os.Readlink(r.proc(pid, "fd", e.Name())); err == nil {
			files = append(files, OpenFile{fd, path})
		}
	}
	slices.SortFunc(files, func(a, b OpenFile) int { return a.FD - b.FD })
	return files, nil
}
