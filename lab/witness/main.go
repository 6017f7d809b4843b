// Witness runs in the lab and watches mirrored VMs from the host's kernel: how long each vCPU's thread has run
// (schedstat), and on which CPU. It compares this with the record of granted CPUs, and prints what it
// has seen when it is ended by SIGTERM.
//
//	witness RECORD NAME=MINIMUM...
//
// The record says for each CPU which VM it serves. A vCPU that ran on a CPU of another VM, or on a free one, while
// the record did not change for that CPU, is a violation.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// interval is the time between two looks at all threads.
const interval = 20 * time.Millisecond

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "witness: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 1 {
		return errors.New("usage: witness RECORD NAME=MINIMUM")
	}
	w := newWatch(args[0])
	for _, arg := range args[1:] {
		name, text, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		w.minimums[name] = n
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	changes, err := watchFolderOf(args[0])
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		w.look(procThreads)
		for next := time.Now().Add(interval); ctx.Err() == nil; {
			left := time.Until(next)
			if left <= 0 {
				break
			}
			fds := []unix.PollFd{{Fd: int32(changes), Events: unix.POLLIN}}
			if n, _ := unix.Poll(fds, int(left.Milliseconds())+1); n > 0 {
				var buffer [4096]byte
				_, _ = unix.Read(changes, buffer[:])
				w.readRecord(time.Now())
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(w.out)
}

// watchFolderOf returns a descriptor that is readable when a file in the folder of path has been replaced.
func watchFolderOf(path string) (int, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return -1, err
	}
	folder := path[:strings.LastIndexByte(path, '/')]
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return -1, err
	}
	_, err = unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO)
	return fd, err
}

// thread is a vCPU's thread at one look.
type thread struct {
	guest string
	tid   int
	ran   time.Duration
	wait  time.Duration // for a CPU, in a run queue
	cpu   topology.CPUID
}

// procThreads reads the threads of all VMs of libvirt.
func procThreads() []thread {
	var all []thread
	pids, _ := os.ReadDir("/run/libvirt/qemu")
	for _, file := range pids {
		name, ok := strings.CutSuffix(file.Name(), ".pid")
		if !ok {
			continue
		}
		pid, err := os.ReadFile("/run/libvirt/qemu/" + file.Name())
		if err != nil {
			continue
		}
		folder := "/proc/" + strings.TrimSpace(string(pid)) + "/task/"
		tasks, _ := os.ReadDir(folder)
		for _, task := range tasks {
			if t, ok := readThread(folder + task.Name()); ok {
				t.guest, t.tid = name, number(task.Name())
				all = append(all, t)
			}
		}
	}
	return all
}

// readThread reads a vCPU's thread; ok is false for other threads, and for one that has ended.
func readThread(folder string) (t thread, ok bool) {
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return t, false
	}
	name, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !strings.Contains(name, "(CPU ") || len(fields) < 37 {
		return t, false
	}
	t.cpu = topology.CPUID(number(fields[36])) // the 39th field of the line, see proc(5)
	figures, err := os.ReadFile(folder + "/schedstat")
	f := strings.Fields(string(figures))
	if err != nil || len(f) < 2 {
		return t, false
	}
	t.ran, t.wait = time.Duration(number(f[0])), time.Duration(number(f[1]))
	return t, true
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
