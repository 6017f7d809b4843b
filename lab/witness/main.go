// Witness runs in the lab and watches mirrored VMs from the host's kernel: how long each vCPU's thread has run
// (schedstat), and on which CPU. It compares this with the record of granted CPUs, and prints what it
// has seen when it is ended by SIGTERM.
//
//	witness INTERVAL RECORD NAME=MINIMUM...
//
// INTERVAL is the time between two looks at all threads, such as 20ms.
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
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "witness: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: witness INTERVAL RECORD NAME=MINIMUM...")
	}
	interval, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	w := newWatch(args[1])
	for _, arg := range args[2:] {
		name, text, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		w.minimums[name] = n
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	changes, err := watchFolderOf(args[1])
	if err != nil {
		return err
	}
	var proc proc
	for ctx.Err() == nil {
		w.look(proc.threads)
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

// relist is the time between two looks for new threads. A VM's threads exist before its agent reports.
const relist = time.Second

// proc reads the threads of all VMs of libvirt. It keeps their files open, since opening them takes longest.
type proc struct {
	listed time.Time
	files  map[string]*files // by the folder of the thread
}

// files are those of a vCPU's thread.
type files struct {
	guest           string
	tid             int
	stat, schedstat *os.File
}

func (p *proc) threads() []thread {
	if now := time.Now(); now.Sub(p.listed) >= relist {
		p.listed = now
		p.list()
	}
	var all []thread
	for folder, f := range p.files {
		t, ok := f.read()
		if !ok { // it has ended
			f.close()
			delete(p.files, folder)
			continue
		}
		all = append(all, t)
	}
	return all
}

// list finds the vCPUs' threads.
func (p *proc) list() {
	if p.files == nil {
		p.files = map[string]*files{}
	}
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
			if _, known := p.files[folder+task.Name()]; known {
				continue
			}
			if f, ok := open(name, folder+task.Name()); ok {
				p.files[folder+task.Name()] = f
			}
		}
	}
}

// open opens the files of a vCPU's thread; ok is false for other threads, and for one that has ended.
func open(guest, folder string) (f *files, ok bool) {
	name, err := os.ReadFile(folder + "/comm")
	if err != nil || !strings.HasPrefix(string(name), "CPU ") {
		return nil, false
	}
	f = &files{guest: guest, tid: number(filepath.Base(folder))}
	var errStat, errFigures error
	f.stat, errStat = os.Open(folder + "/stat")
	f.schedstat, errFigures = os.Open(folder + "/schedstat")
	if errStat != nil || errFigures != nil {
		f.close()
		return nil, false
	}
	return f, true
}

func (f *files) close() { _, _ = f.stat.Close(), f.schedstat.Close() }

// read reads a vCPU's thread; ok is false for one that has ended.
func (f *files) read() (t thread, ok bool) {
	_, rest, _ := strings.Cut(content(f.stat), ") ")
	fields, figures := strings.Fields(rest), strings.Fields(content(f.schedstat))
	if len(fields) < 37 || len(figures) < 2 {
		return t, false
	}
	return thread{guest: f.guest, tid: f.tid, ran: time.Duration(number(figures[0])),
		wait: time.Duration(number(figures[1])),
		cpu:  topology.CPUID(number(fields[36]))}, true // the 39th field of the line, see proc(5)
}

// content returns what a file of a thread says now.
func content(f *os.File) string {
	var buffer [1024]byte
	n, _ := f.ReadAt(buffer[:], 0)
	return string(buffer[:n])
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
