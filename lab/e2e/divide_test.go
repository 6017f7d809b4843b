package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// divideShape has two nodes for a VM, and one for the host. Only what the VM's program marks is counted and delayed.
const divideShape = `name: divided
nodes: [{cpus: 2, memory: 1G}, {cpus: 2, memory: 1G}, {cpus: 2, memory: 1G}]
distances: [[10, 16, 16], [16, 10, 16], [16, 16, 10]]
latency_ns: [[85, 140, 140], [140, 85, 140], [140, 140, 85]]
delay_local: true
delay_scale: 1000
marked: true
`

// A VM of four vCPUs sees no nodes and is on two. Each thread of its program has memory on one node, and its vCPU runs
// on the other one. The daemon binds each vCPU to the node of what it accesses, by the access counter; it continues
// after it was killed, and lets go as it ends.
func TestLabDividesVCPUsByTheirAccesses(t *testing.T) {
	rotate.Test(t, 5)
	labtest.NeedsLab(t)
	t.Parallel()
	shape := filepath.Join(t.TempDir(), "divided.yaml")
	if err := os.WriteFile(shape, []byte(divideShape), 0o600); err != nil {
		t.Fatal(err)
	}
	l := bootHandoff(t, shape, "overcommit: 1\n", "4,5")
	// The guest's kernel takes the program's memory at boot, and does not fill it with zeros then. The division needs
	// no agent, and one could park a vCPU to which the program is bound.
	l.must(t, "create", "--policy", "/run/policy.yaml", "--name", "wide", "--sharing", "scale", "--vcpus", "4",
		"--topology", "off", "--memory", "256M", "--nodes", "0-1", "--kernel", lab.GuestKernel, "--initrd",
		lab.MirrorInitrd, "--append", lab.GuestCommandLine+" noagent hugepages=8 init_on_alloc=0")
	l.stopDaemon(t, "TERM")
	// All memory that the guest's kernel uses is on node 1. The program must not get what the kernel has freed of it.
	l.bindVCPUs(t, "2-3", "2-3", "2-3", "2-3")
	if err := l.AwaitGuest(l.ctx, "wide"); err != nil {
		t.Fatal(err)
	}
	l.bindVCPUs(t, "0-1", "0-1", "2-3", "2-3")
	l.types(t, "wide", "bound 500 3600 0 4")
	l.await(t, "the program runs", func() bool { return len(l.said(t, "wide", "RUN")) > 1 })
	l.bindVCPUs(t, "2-3", "2-3", "0-1", "0-1")
	counter, err := l.Scope()
	if err != nil {
		t.Fatal(err)
	}
	if err := counter.Set(t.Context(), labcounter.Felt); err != nil {
		t.Fatal(err)
	}
	if share := l.localAccesses(t, counter); share > 0.1 {
		m, err := counter.Read()
		t.Fatalf("%.0f %% of accesses are local before; of each CPU to nodes %v: %v %v", 100*share, m.Nodes, m.CPUs[:4], err)
	}
	before := l.stepsOf(t, "wide")
	l.startDaemon(t)
	l.hostAside(t, "4,5")
	const divided = "vCPUs by accesses: 0-1 on node 0, 2-3 on node 1\n"
	l.await(t, "the vCPUs are divided", func() bool { return strings.Contains(l.must(t, "show", "wide").stdout, divided) })
	l.areBound(t, "0-1", "0-1", "2-3", "2-3")
	if share := l.localAccesses(t, counter); share < 0.9 {
		t.Errorf("%.0f %% of accesses are local after", 100*share)
	}
	t.Logf("steps a second: %.0f before, %.0f after", before, l.stepsOf(t, "wide"))
	if text := l.must(t, "list").stdout; !strings.Contains(text, "nodes 0-1") {
		t.Errorf("the list:\n%s", text)
	}

	l.stopDaemon(t, "KILL")
	l.areBound(t, "0-1", "0-1", "2-3", "2-3")
	l.startDaemon(t)
	l.hostAside(t, "4,5")
	l.await(t, "the division is known", func() bool { return strings.Contains(l.must(t, "show", "wide").stdout, divided) })
	l.areBound(t, "0-1", "0-1", "2-3", "2-3")
	l.stopDaemon(t, "TERM")
	l.areBound(t, "0-3", "0-3", "0-3", "0-3")
}

// stepsOf returns how many steps the program of a VM makes in a second.
func (l *labHost) stepsOf(t *testing.T, name string) float64 {
	t.Helper()
	first, last := l.twoReports(t, name, 0)
	return float64(last.steps-first.steps) / (last.at - first.at).Seconds()
}

// vcpuTasks is a shell loop over the vCPUs of VM wide: v is the number and tid the thread.
const vcpuTasks = `pid=$(cat /run/libvirt/qemu/wide.pid)
for v in 0 1 2 3; do for task in /proc/$pid/task/*; do
  if [ "$(cat $task/comm)" = "CPU $v/KVM" ]; then tid=${task##*/}; %s; fi
done; done`

// bindVCPUs binds the vCPUs of VM wide to CPUs, as the host's scheduler may have put them.
func (l *labHost) bindVCPUs(t *testing.T, cpus ...string) {
	t.Helper()
	for v, list := range cpus {
		l.sh(t, fmt.Sprintf(vcpuTasks, fmt.Sprintf("[ $v = %d ] && taskset -cp %s $tid >/dev/null || true", v, list)))
	}
	l.areBound(t, cpus...)
}

// areBound requires that the kernel runs the vCPUs of VM wide on CPUs.
func (l *labHost) areBound(t *testing.T, cpus ...string) {
	t.Helper()
	got := strings.Fields(l.sh(t, fmt.Sprintf(vcpuTasks, "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $task/status")))
	if strings.Join(got, " ") != strings.Join(cpus, " ") {
		t.Errorf("the vCPUs run on CPUs %v, want %v", got, cpus)
	}
}

// localAccesses counts until the VM has accessed memory often, and returns the share of accesses to the CPU's node.
func (l *labHost) localAccesses(t *testing.T, counter *labcounter.Counter) float64 {
	t.Helper()
	if err := counter.Reset(); err != nil {
		t.Fatal(err)
	}
	local, all := uint64(0), uint64(0)
	l.await(t, "accesses are counted", func() bool {
		m, err := counter.Read()
		if err != nil {
			t.Fatal(err)
		}
		local, all = 0, 0
		for cpu := range 4 {
			for i, node := range m.Nodes {
				all += m.CPUs[cpu][i]
				if node == topology.NodeID(cpu/2) {
					local += m.CPUs[cpu][i]
				}
			}
		}
		return all > 10_000
	})
	return float64(local) / float64(all)
}
