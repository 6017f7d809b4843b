package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/inventory"
)

func TestThreadsOfCapturedGuest(t *testing.T) {
	root, pid := captured(t, "anon")
	threads, source, err := root.Threads(pid)
	if err != nil || source == "" {
		t.Fatalf("source %q, error %v", source, err)
	}
	var got []string
	for _, x := range threads {
		vcpu := ""
		if x.VCPU != nil {
			vcpu = fmt.Sprint(*x.VCPU)
		}
		got = append(got, fmt.Sprintf("%s|%s%s|%s|%s", x.Name, x.Role, vcpu, x.Affinity, x.Mems))
	}
	want := "qemu-system-x86|emulator|0-7|0-3\nqemu-system-x86|emulator|0-7|0-3\nIO iothread1|iothread|0-7|0-3\n" +
		"IO mon_iothread|emulator|0-7|0-3\nCPU 0/KVM|vcpu0|2|0-3\nCPU 1/KVM|vcpu1|3|0-3"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("threads\n%s\nwant\n%s", text, want)
	}
	v := threads[4]
	if v.RunTime != 6631019860 || v.WaitTime != 36592756 || v.LastCPU != 2 {
		t.Errorf("vCPU 0: run %d, wait %d, last on CPU %d", v.RunTime, v.WaitTime, v.LastCPU)
	}
}

func TestThreadTimesOfThisThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	before, _, err := Root("/").ThreadTimes(tid)
	if err != nil {
		t.Fatal(err)
	}
	for now := before; now <= before; { // the kernel counts at each tick
		if now, _, err = Root("/").ThreadTimes(tid); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Root(t.TempDir()).ThreadTimes(tid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a thread that does not exist: %v", err)
	}
}

func TestRolesOfThreadNames(t *testing.T) {
	for name, want := range map[string]string{
		"CPU 0/KVM": "vcpu 0", "CPU 127/TCG": "vcpu 127", "vcpu3": "vcpu 3", "fc_vcpu 2": "vcpu 2",
		"crosvm_vcpu11": "vcpu 11",
		"IO iothread1":  "iothread", "IO mon_iothread": "emulator", "vhost-4711": "vhost",
		"qemu-system-x86": "emulator", "CPU x/KVM": "emulator", "CPU 1": "emulator", "vcpu": "emulator",
		"worker": "emulator", "TC tc-ram-node0": "emulator",
	} {
		role, vcpu := roleOf(name)
		got := string(role)
		if vcpu != nil {
			got += fmt.Sprint(" ", *vcpu)
		}
		if got != want {
			t.Errorf("%q is %s, want %s", name, got, want)
		}
	}
}

func TestVhostWorkersBeforeLinux64(t *testing.T) {
	root, pid := captured(t, "plain")
	worker := func(id int, name string) {
		for file, text := range map[string]string{
			"comm": name + "\n", "stat": fmt.Sprintf("%d (%s) S 2 0 0 %s 5 %s", id, name, strings.Repeat("0 ", 15),
				strings.Repeat("0 ", 30)),
			"status": "Name:\t" + name + "\nTgid:\t" + fmt.Sprint(id) +
				"\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0-3\n", "schedstat": "10 20 3\n"} {
			if err := os.MkdirAll(root.proc(id), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root.proc(id, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	worker(9001, fmt.Sprintf("vhost-%d", pid))
	worker(9002, fmt.Sprintf("vhost-%d", pid+1))
	before, _, err := root.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/vhost-net", root.proc(pid, "fd", "99")); err != nil {
		t.Fatal(err)
	}
	after, _, err := root.Threads(pid)
	if err != nil || len(after) != len(before)+1 {
		t.Fatalf("%d threads, then %d with a vhost device; error %v", len(before), len(after), err)
	}
	if last := after[len(after)-1]; last.TID != 9001 || last.Role != inventory.RoleVhost ||
		last.WaitTime != 20*time.Nanosecond {
		t.Errorf("%+v", last)
	}
}

func TestThreadsOfAnEndedProcess(t *testing.T) {
	if _, _, err := Root(t.TempDir()).Threads(1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestOwnThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	threads, _, err := Live.Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range threads {
		if x.TID == unix.Gettid() {
			have, err := Affinity(x.TID)
			if err != nil || !have.Equal(x.Affinity) {
				t.Errorf("status says %s, sched_getaffinity %s, error %v", x.Affinity, have, err)
			}
			return
		}
	}
	t.Error("the reading thread is not among the threads")
}

func TestSetAffinity(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its affinity with it
	all, err := Affinity(0)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := all.First()
	if err := SetAffinity(0, cpus(fmt.Sprint(int(first)))); err != nil {
		t.Fatal(err)
	}
	if have, err := Affinity(0); err != nil || have.Len() != 1 {
		t.Errorf("on %s, error %v", have, err)
	}
	var differs *NotEffectiveError
	if err := SetAffinity(0, cpus(fmt.Sprintf("%d,5000", first))); !errors.As(err, &differs) {
		t.Errorf("CPU 5000 does not exist, yet: %v", err)
	}
	if err := SetAffinity(0, cpus("5000")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("only CPU 5000: %v", err)
	}
	if err := SetAffinity(0, cpus("")); err == nil {
		t.Error("bound to no CPU")
	}
	if mask := cpuMask(cpus("1024")); len(mask) != 17 || mask.Count() != 1 {
		t.Errorf("CPU 1024 is cut off: %v", mask)
	}
}
