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
