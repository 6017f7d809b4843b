package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// mostWakes is how often in a second a parked vCPU may run. If a vCPU becomes a partition before its kernel takes it
// off the list of idle ones, the kernel wakes it whenever a busy vCPU wants its load balanced: 350 times a second,
// which took 6 % of the CPU on which the parked vCPUs run.
const mostWakes = 50

// parkedVCPUsSleep requires that the vCPUs without a CPU of their own sleep while their VM works. For some seconds the
// guest's kernel may still have work for a vCPU that was freed just now.
func (l *labHost) parkedVCPUsSleep(t *testing.T, name string) {
	t.Helper()
	var rates map[guest.VCPUID]float64
	for range 5 {
		parked := l.parked(t, name)
		rates = l.runsPerSecond(t, name, 4*time.Second)
		if len(parked) == 0 || !slices.Equal(parked, l.parked(t, name)) {
			continue
		}
		if !slices.ContainsFunc(parked, func(v guest.VCPUID) bool { return rates[v] > mostWakes }) {
			t.Logf("%s: its vCPUs run %v times a second; %v are parked", name, rates, parked)
			return
		}
	}
	t.Errorf("%s: its vCPUs run %v times a second; parked ones may run %d times", name, rates, mostWakes)
}

// parked returns the vCPUs of a mirrored VM whose CPUs the record does not grant to the VM.
func (l *labHost) parked(t *testing.T, name string) (all []guest.VCPUID) {
	t.Helper()
	var record struct {
		Grants []struct {
			CPU   topology.CPUID
			Guest string
		}
	}
	if err := json.Unmarshal([]byte(l.sh(t, "cat "+grantRecord)), &record); err != nil {
		t.Fatal(err)
	}
	granted := map[topology.CPUID]bool{}
	for _, g := range record.Grants {
		granted[g.CPU] = granted[g.CPU] || g.Guest == name
	}
	for vcpu, cpu := range mirrorOf(t, l, name) {
		if !granted[cpu] {
			all = append(all, guest.VCPUID(vcpu))
		}
	}
	return all
}

// runsPerSecond returns how often the host's kernel let each vCPU of a VM run, measured over some time.
func (l *labHost) runsPerSecond(t *testing.T, name string, within time.Duration) map[guest.VCPUID]float64 {
	t.Helper()
	first, runs := l.vcpuRuns(t, name)
	time.Sleep(within)
	last, then := l.vcpuRuns(t, name)
	rates := map[guest.VCPUID]float64{}
	for v, n := range then {
		rates[v] = float64(n-runs[v]) / (last - first)
	}
	return rates
}

// vcpuRuns returns how often each vCPU of a VM has run (the third field of schedstat), and the lab's uptime in seconds.
func (l *labHost) vcpuRuns(t *testing.T, name string) (uptime float64, runs map[guest.VCPUID]int) {
	t.Helper()
	text := l.sh(t, `read -r up _ < /proc/uptime; echo $up
for task in /proc/$(cat /run/libvirt/qemu/`+name+`.pid)/task/*; do
  read -r kind vcpu < $task/comm
  [ "$kind" = CPU ] && read -r _ _ runs < $task/schedstat && echo ${vcpu%/KVM} $runs
done; true`)
	head, rows, _ := strings.Cut(text, "\n")
	if _, err := fmt.Sscan(head, &uptime); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	runs = map[guest.VCPUID]int{}
	for row := range strings.Lines(rows) {
		var vcpu guest.VCPUID
		var n int
		if _, err := fmt.Sscan(row, &vcpu, &n); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		runs[vcpu] = n
	}
	if len(runs) == 0 {
		t.Fatalf("VM %s has no vCPUs: %q", name, text)
	}
	return uptime, runs
}
