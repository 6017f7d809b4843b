package linux

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// ThreadSource names the files that Threads reads.
const ThreadSource = "/proc/PID/task/TID stat, status, schedstat"

// Threads returns the threads of a VM process, ascending by id, including the
// vhost kernel threads that work for it. It leaves out threads that end
// meanwhile.
func (r Root) Threads(pid int) (threads []inventory.Thread, source string, err error) {
	tids, err := numberedEntries(r.proc(pid, "task"))
	if r == Live {
		err = unreadOrGone(pid, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	for _, tid := range tids {
		t, err := r.thread(filepath.Join("proc", strconv.Itoa(pid), "task", strconv.Itoa(tid)))
		if Gone(err) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("thread %d of process %d: %w", tid, pid, err)
		}
		threads = append(threads, t)
	}
	if len(threads) == 0 {
		return nil, "", fmt.Errorf("listing the threads of process %d: %w", pid, os.ErrNotExist)
	}
	if !r.needsVhostWorkers(pid, threads) {
		return threads, ThreadSource, nil
	}
	workers, err := r.vhostWorkers(pid)
	return append(threads, workers...), ThreadSource, err
}

// VCPUThreads returns the ids of the threads that run a VM's vCPUs, ascending
// by vCPU, by their names alone: much cheaper than Threads. known has the names
// of threads seen before, which are not read again; VCPUThreads updates it.
// Where no thread has a vCPU's name (QEMU run without debug-threads=on), named
// is false and the result is all threads of the process.
func (r Root) VCPUThreads(pid int, known map[int]string) (tids []int, named bool, err error) {
	all, err := numberedEntries(r.proc(pid, "task"))
	if err != nil {
		return nil, false, fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	maps.DeleteFunc(known, func(tid int, _ string) bool { return !slices.Contains(all, tid) })
	vcpus := map[int]guest.VCPUID{}
	for _, tid := range all {
		name, seen := known[tid]
		if !seen {
			if name, err = r.word("proc", strconv.Itoa(pid), "task", strconv.Itoa(tid), "comm"); Gone(err) {
				continue
			}
			if err != nil {
				return nil, false, fmt.Errorf("the name of thread %d of process %d: %w", tid, pid, err)
			}
			known[tid] = name
		}
		if id, ok := VCPUOf(name); ok {
			vcpus[tid] = id
		}
	}
	if len(vcpus) == 0 {
		return all, false, nil
	}
	tids = slices.Collect(maps.Keys(vcpus))
	slices.SortFunc(tids, func(a, b int) int { return cmp.Or(cmp.Compare(vcpus[a], vcpus[b]), cmp.Compare(a, b)) })
	return tids, true, nil
}

// needsVhostWorkers reports whether kernel threads outside the process work for
// the VM: the process has a vhost device open and no such thread itself.
func (r Root) needsVhostWorkers(pid int, threads []inventory.Thread) bool {
	if slices.ContainsFunc(threads, func(t inventory.Thread) bool { return t.Role == inventory.RoleVhost }) {
		return false
	}
	files, err := r.OpenFiles(pid)
	return err != nil ||
		slices.ContainsFunc(files, func(f OpenFile) bool { return strings.HasPrefix(f.Path, "/dev/vhost-") })
}

// thread reads one thread's folder below /proc.
func (r Root) thread(folder string) (t inventory.Thread, err error) {
	data, err := readFile(r.path(folder, "stat"))
	if err != nil {
		return t, err
	}
	stat, err := ParseStat(data)
	if err != nil {
		return t, err
	}
	if data, err = readFile(r.path(folder, "status")); err != nil {
		return t, err
	}
	status, err := ParseStatus(data)
	if err != nil {
		return t, err
	}
	t = inventory.Thread{TID: stat.ID, Name: stat.Name, LastCPU: stat.LastCPU, Affinity: status.CPUs, Mems: status.Mems}
	t.Role, t.VCPU = roleOf(stat.Name)
	text, err := r.word(folder, "schedstat")
	if err != nil && !os.IsNotExist(err) { // absent in kernels without CONFIG_SCHED_INFO
		return t, err
	}
	if err == nil {
		t.RunTime, t.WaitTime, err = ParseSchedstat([]byte(text))
	}
	return t, err
}

// ThreadTimes returns how long a thread has run, and how long it was runnable
// and waited for a CPU, since it started (/proc/TID/schedstat).
func (r Root) ThreadTimes(tid int) (ran, waited time.Duration, err error) {
	text, err := r.word("proc", strconv.Itoa(tid), "schedstat")
	if err == nil {
		ran, waited, err = ParseSchedstat([]byte(text))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("times of thread %d: %w", tid, err)
	}
	return ran, waited, nil
}

// ParseSchedstat reads /proc/PID/schedstat: time on a CPU, and time runnable
// but waiting for one (what a guest sees as steal).
func ParseSchedstat(data []byte) (run, wait time.Duration, err error) {
	r, rest, ok1 := nextFigure(data)
	w, _, ok2 := nextFigure(rest)
	if !ok1 || !ok2 || r > math.MaxInt64 || w > math.MaxInt64 {
		return 0, 0, fmt.Errorf("schedstat: %q does not begin with run and wait times in nanoseconds",
			abbreviate(string(data)))
	}
	return time.Duration(r), time.Duration(w), nil
}

// roleOf derives a thread's role from its name, as the VM programs set it: QEMU
// with debug-threads=on (libvirt always asks for it), Cloud Hypervisor,
// Firecracker and crosvm. QEMU's own "IO mon_iothread" serves its monitor.
func roleOf(name string) (inventory.ThreadRole, *guest.VCPUID) {
	if id, ok := VCPUOf(name); ok {
		return inventory.RoleVCPU, &id
	}
	switch {
	case name == "IO mon_iothread":
		return inventory.RoleEmulator, nil
	case strings.HasPrefix(name, "IO "):
		return inventory.RoleIOThread, nil
	case strings.HasPrefix(name, "vhost-"):
		return inventory.RoleVhost, nil
	}
	return inventory.RoleEmulator, nil
}

// VCPUOf returns the vCPU that a thread with this name runs: QEMU's "CPU 3/KVM", and the names of other VMMs.
func VCPUOf(name string) (guest.VCPUID, bool) {
	digits := ""
	if rest, ok := strings.CutPrefix(name, "CPU "); ok {
		digits, _, ok = strings.Cut(rest, "/")
		if !ok {
			return 0, false
		}
	} else {
		for _, prefix := range []string{"vcpu", "fc_vcpu ", "crosvm_vcpu"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				digits = rest
			}
		}
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	return guest.VCPUID(n), err == nil
}

// vhostWorkers finds the kernel threads that move a VM's network packets.
// Before Linux 6.4 they are separate processes, named after the VM's process;
// since then they are threads of it and found among these.
func (r Root) vhostWorkers(pid int) ([]inventory.Thread, error) {
	ids, err := numberedEntries(r.path("proc"))
	if err != nil {
		return nil, fmt.Errorf("looking for vhost threads: %w", err)
	}
	want := fmt.Sprintf("vhost-%d", pid)
	var workers []inventory.Thread
	for _, id := range ids {
		name, err := r.word("proc", strconv.Itoa(id), "comm")
		if err != nil || name != want {
			continue
		}
		t, err := r.thread(filepath.Join("proc", strconv.Itoa(id)))
		if Gone(err) {
			continue
		}
		if err != nil {
			return workers, fmt.Errorf("vhost thread %d of process %d: %w", id, pid, err)
		}
		workers = append(workers, t)
	}
	return workers, nil
}

// numberedEntries lists the entries of a folder that are numbers, ascending.
func numberedEntries(folder string) ([]int, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil && id > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
