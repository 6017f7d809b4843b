package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// ConfineVCPU restricts the thread of a vCPU to CPUs: its cgroup, where libvirt has
// made one, and then its affinity, which the kernel cuts to the cgroup's CPUs.
func (r Root) ConfineVCPU(pid, tid int, vcpu guest.VCPUID, cpus topology.CPUSet) error {
	g, ok, err := r.GuestCgroupOf(pid)
	if err != nil {
		return fmt.Errorf("finding the cgroup of process %d: %w", pid, err)
	}
	if own, has := g.VCPUs[vcpu]; ok && has {
		if _, err := own.SetCPUs(cpus); err != nil {
			return err
		}
	}
	return SetAffinity(tid, cpus)
}

// RunTimeOf returns how long a thread has run (the first figure of its schedstat).
func (r Root) RunTimeOf(pid, tid int) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(r.proc(pid, "task"), strconv.Itoa(tid), "schedstat"))
	if err != nil {
		return 0, err
	}
	ran, _, _ := strings.Cut(string(text), " ")
	nanos, err := strconv.ParseInt(ran, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the run time of thread %d: %w", tid, err)
	}
	return time.Duration(nanos), nil
}

// SocketOf returns the path of a Unix socket on which a process listens, by the
// last part of the path; empty: it listens on none. QEMU gets such sockets from
// libvirt, which makes their paths from the VM's number and a part of its name.
func (r Root) SocketOf(pid int, name string) (string, error) {
	table, err := os.ReadFile(r.path("proc", strconv.Itoa(pid), "net", "unix"))
	if err != nil {
		return "", err
	}
	paths := map[string]string{} // by inode
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path; flag 0x10000: it listens (SO_ACCEPTCON)
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == "00010000" && filepath.Base(f[7]) == name {
			paths["socket:["+f[6]+"]"] = f[7]
		}
	}
	if len(paths) == 0 {
		return "", nil
	}
	folder := r.proc(pid, "fd")
	files, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join(folder, file.Name())); err == nil && paths[target] != "" {
			return paths[target], nil
		}
	}
	return "", nil
}
