package linux

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/inventory"
)

// addProcess writes the files of a process. arguments "" make cmdline a FIFO
// without a writer: opening it blocks, as reading it does in the kernel while
// the process's memory map is locked.
func addProcess(t *testing.T, r Root, pid int, exe, cgroup, arguments string) {
	t.Helper()
	if err := os.MkdirAll(r.proc(pid), 0o755); err != nil {
		t.Fatal(err)
	}
	cmdline := r.proc(pid, "cmdline")
	err := errors.Join(os.Symlink(exe, r.proc(pid, "exe")),
		os.WriteFile(r.proc(pid, "cgroup"), []byte("0::"+cgroup+"\n"), 0o644))
	if arguments != "" {
		err = errors.Join(err, os.WriteFile(cmdline, []byte(strings.ReplaceAll(arguments, " ", "\x00")), 0o644))
	} else {
		err = errors.Join(err, unix.Mkfifo(cmdline, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// release ends the blocked read of a FIFO of addProcess.
func release(t *testing.T, r Root, pid int) {
	t.Helper()
	file, err := os.OpenFile(r.proc(pid, "cmdline"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("process %d was not read, or is read no longer: %v", pid, err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// hasty returns a reader that gives up soon.
func hasty(r Root) *Arguments {
	a := NewArguments(r)
	a.limit = 200 * time.Millisecond
	return a
}

func hostWithProcesses(t *testing.T) Root {
	t.Helper()
	r := Root(t.TempDir())
	addProcess(t, r, 10, "/usr/bin/qemu-system-x86_64", "/", "/usr/bin/qemu-system-x86_64 -name plain -m 64")
	return r
}

// A process whose memory map is locked hides no other process, and is not
// waited for if it is no QEMU.
func TestQEMUs_PassByABlockedProcess(t *testing.T) {
	r := hostWithProcesses(t)
	addProcess(t, r, 11, "/usr/bin/rsync", "/", "")
	began := time.Now()
	found, gaps, err := NewArguments(r).QEMUs()
	if err != nil || len(gaps) > 0 || len(found) != 1 || found[0].Name != "plain" {
		t.Errorf("found %v, gaps %v, %v; want the VM plain", found, gaps, err)
	}
	if took := time.Since(began); took >= argumentsTime {
		t.Errorf("it took %v", took)
	}
}

// A QEMU whose memory map is locked is a gap, unless libvirt reports it.
func TestQEMUs_NameABlockedQEMU(t *testing.T) {
	for cgroup, hidden := range map[string]bool{
		"/user.slice": true,
		`/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator`: false,
	} {
		r := hostWithProcesses(t)
		addProcess(t, r, 12, "/usr/bin/qemu-system-x86_64", cgroup, "")
		if err := os.MkdirAll(r.path("sys/fs/cgroup"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.path("sys/fs/cgroup/cgroup.controllers"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		a := hasty(r)
		found, gaps, err := a.QEMUs()
		if err != nil || len(found) == 0 || found[0].Name != "plain" {
			t.Errorf("%s: found %v, %v; want the VM plain", cgroup, found, err)
		}
		if hidden != (len(gaps) == 1) || hidden && gaps[0].Kind != inventory.ConfigUnread {
			t.Errorf("%s: gaps %v; want one: %v", cgroup, gaps, hidden)
		}
		if !hidden && (len(found) != 2 || !found[1].Libvirt) {
			t.Errorf("%s: found %v; want a VM of libvirt", cgroup, found)
		}
		release(t, r, 12)
	}
}

// Repeated observations do not add a blocked thread each.
func TestArguments_BlockedReadIsNotRepeated(t *testing.T) {
	r := hostWithProcesses(t)
	addProcess(t, r, 12, "/usr/bin/qemu-system-x86_64", "/", "")
	a := hasty(r)
	if _, err := a.Of(12); !errors.Is(err, ErrNoAnswer) {
		t.Fatalf("error is %v; want ErrNoAnswer", err)
	}
	began := time.Now()
	for range 100 {
		if _, err := a.Of(12); !errors.Is(err, ErrNoAnswer) {
			t.Fatalf("error is %v; want ErrNoAnswer", err)
		}
	}
	if took := time.Since(began); took >= 50*a.limit {
		t.Errorf("100 more attempts took %v", took)
	}
	release(t, r, 12)
	if err := os.Remove(r.proc(12, "cmdline")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.proc(12, "cmdline"), []byte("qemu\x00-m\x00"+strconv.Itoa(64)), 0o644); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		args, err := a.Of(12)
		if err == nil && len(args) == 3 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after the read has returned: %v, %v", args, err)
		}
	}
}

// A process whose memory map is locked must not block a command that reads its
// mappings: no signal would end it.
func TestMappings_OfABlockedProcess(t *testing.T) {
	t.Parallel()
	r := hostWithProcesses(t)
	for _, file := range []string{"cmdline", "maps", "numa_maps"} {
		if err := os.MkdirAll(r.proc(13), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(r.proc(13, file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, read := range map[string]func() error{
		"numa_maps": func() error { _, _, err := r.NUMAMaps(13); return err },
		"ranges":    func() error { _, err := r.Ranges(t.Context(), 13); return err },
	} {
		done := make(chan error, 1)
		go func() { done <- read() }()
		select {
		case err := <-done:
			if !errors.Is(err, ErrNoAnswer) {
				t.Errorf("%s: error is %v; want ErrNoAnswer", name, err)
			}
		case <-time.After(5 * argumentsTime):
			t.Fatalf("%s: blocked", name)
		}
		release(t, r, 13)
	}
}
