package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/rotate"
)

// A VM gets a CPU of a node for itself that another VM uses too. The daemon binds the other VM off this CPU: the kernel
// lets its vCPUs run on the node's other CPU alone, and they take no time of the first VM.
func TestLabDaemonFreesDedicatedCPUs(t *testing.T) {
	rotate.Test(t, 0)
	l := boot(t, "square4")
	for _, name := range []string{"shares", "owns"} {
		t.Cleanup(func() { l.run(t, "numavisor", "delete", name) })
	}
	l.must(t, "create", "--name", "shares", "--vcpus", "1", "--memory", "64M", "--nodes", "1", "--immediate")
	if on := l.mayRunOn(t, "shares"); on.String() != "2-3" {
		t.Fatalf("may run on CPUs %s, want those of node 1: 2-3", on)
	}
	l.daemon(t, "", "shares", "owns")
	r := l.numavisor(t, "create", "--name", "owns", "--vcpus", "1", "--memory", "64M", "--nodes", "1", "--cpu-binding",
		"exclusive", "--emulator", "none", "--immediate")
	if r.status != 3 || !strings.Contains(r.stderr, "numavisor bind shares") { // 3: not all is as requested yet
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	own := l.mayRunOn(t, "owns")
	if own.Len() != 1 {
		t.Fatalf("its vCPU may run on CPUs %s, want one", own)
	}
	want := topology.SetOf[topology.CPUID](2, 3).Minus(own)
	var on topology.CPUSet
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(2 * time.Second) {
		if on = l.mayRunOn(t, "shares"); on.Equal(want) {
			break
		}
	}
	if !on.Equal(want) {
		t.Fatalf("may run on CPUs %s, want %s\n%s", on, want, l.sh(t, "tail -20 /run/daemon.log"))
	}
	if text := l.must(t, "history", "--records", "/run/records").stdout; !strings.Contains(text, "shares") {
		t.Errorf("no entry about VM shares in the history:\n%s", text)
	}
	if r := l.numavisor(t, "doctor"); strings.Contains(r.stdout, "exclusive-overlap") {
		t.Errorf("doctor:\n%s", r.stdout)
	}
}

// mayRunOn returns the CPUs on which the kernel may run a VM's vCPUs.
func (l *labHost) mayRunOn(t *testing.T, name string) (cpus topology.CPUSet) {
	t.Helper()
	v := l.show(t, name)
	for i := range v.Threads {
		if v.Threads[i].VCPU != nil {
			cpus = cpus.Union(v.Threads[i].Affinity)
		}
	}
	if cpus.IsEmpty() {
		t.Fatalf("VM %s has no vCPU that is seen: %+v", name, v.Threads)
	}
	return cpus
}
