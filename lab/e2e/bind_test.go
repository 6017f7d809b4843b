package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/lab/rotate"
)

// bind binds unmanaged VMs, in each of libvirt's memory modes and kinds of
// memory, to node 3 while they run: three of nine kinds each time.
func TestLabBindsRunningGuestsOfEveryKind(t *testing.T) {
	l := boot(t, "square4")
	const memfd = "<source type='memfd'/>"
	kinds := []foreign{
		{name: "no-numatune"},
		{name: "strict", numatune: "<memory mode='strict' nodeset='0'/>"},
		{name: "preferred", numatune: "<memory mode='preferred' nodeset='0'/>"},
		{name: "strict-memfd", numatune: "<memory mode='strict' nodeset='0'/>", backing: memfd},
		{name: "preferred-memfd", numatune: "<memory mode='preferred' nodeset='0'/>", backing: memfd},
		{name: "no-numatune-memfd", backing: memfd},
		{name: "interleave", numatune: "<memory mode='interleave' nodeset='0-1'/>"},
		{name: "restrictive", numatune: "<memory mode='restrictive' nodeset='0'/>"},
		{name: "restrictive-memfd", numatune: "<memory mode='restrictive' nodeset='0'/>", backing: memfd},
	}
	for i := range kinds {
		kinds[i].memoryMiB, kinds[i].vcpus = 64, 2
	}
	for i := range 3 {
		if !rotate.Turn(i) {
			continue
		}
		// No node has room for the vCPUs of more than these at a time.
		group := []foreign{kinds[i], kinds[i+3], kinds[i+6]}
		l.startAllForeign(t, group...)
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				defer l.sh(t, "virsh -q destroy "+c.name)
				l.must(t, "bind", c.name, "--nodes", "3")
				v := l.show(t, c.name)
				v.vcpusIn(t, 1)
				v.memoryIn(t, 0.98)
				if got := v.Truth.Nodes.String(); got != "3" {
					t.Errorf("recorded nodes %q, want 3", got)
				}
			})
		}
	}
}

func TestLabBindsCellsEachToItsNode(t *testing.T) {
	l := boot(t, "square4")
	const cells = "<numa><cell id='0' cpus='0' memory='48' unit='MiB'/><cell id='1' cpus='1' memory='48' " +
		"unit='MiB'/></numa>"
	const strict = "<memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' nodeset='0'/><memnode " +
		"cellid='1' mode='strict' nodeset='1'/>"
	kinds := []foreign{{name: "strict-memfd", numatune: strict, backing: "<source type='memfd'/>"}}
	if rotate.Turn(0) {
		kinds = append(kinds, foreign{name: "no-numatune"})
	}
	if rotate.Turn(1) {
		kinds = append(kinds, foreign{name: "strict-anonymous", numatune: strict})
	}
	for i := range kinds {
		kinds[i].memoryMiB, kinds[i].vcpus, kinds[i].cells = 96, 2, cells
	}
	l.startAllForeign(t, kinds...)
	for _, c := range kinds {
		t.Run(c.name, func(t *testing.T) {
			defer l.sh(t, "virsh -q destroy "+c.name)
			l.must(t, "bind", c.name, "--nodes", "2-3")
			v := l.show(t, c.name)
			v.vcpusIn(t, 1)
			v.memoryIn(t, 0.98)
			seen := map[string]bool{}
			for _, cell := range v.Cells {
				seen[cell.Intended.String()] = true
			}
			if len(seen) != 2 {
				t.Errorf("cells are intended on %v, want one node each", seen)
			}
		})
	}
}

// A guest with a stored configuration is bound for its next start, too.
func TestLabBindsTheNextStart(t *testing.T) {
	l := boot(t, "square4")
	kinds := []foreign{
		{name: "strict-memfd", numatune: "<memory mode='strict' nodeset='0'/>", backing: "<source type='memfd'/>"},
	}
	if rotate.Turn(1) {
		kinds = append(kinds, foreign{name: "no-numatune"})
	}
	if rotate.Turn(2) {
		kinds = append(kinds, foreign{name: "preferred", numatune: "<memory mode='preferred' nodeset='0'/>"})
	}
	for i := range kinds {
		kinds[i].memoryMiB, kinds[i].vcpus, kinds[i].persistent = 64, 2, true
	}
	l.startAllForeign(t, kinds...)
	for _, c := range kinds {
		t.Run(c.name, func(t *testing.T) {
			l.must(t, "bind", c.name, "--nodes", "3")
			l.sh(t, fmt.Sprintf("virsh -q destroy %s && virsh -q start %[1]s --paused", c.name))
			v := l.show(t, c.name)
			v.vcpusIn(t, 1)
			v.memoryIn(t, 0.98)
			if got := v.Truth.Nodes.String(); got != "3" || len(v.Truth.Differences) > 0 {
				t.Errorf("after a new start it is on nodes %q, drift %v", got, v.Truth.Differences)
			}
			// A VM that was placed holds its room as long as it is defined.
			l.sh(t, fmt.Sprintf("virsh -q destroy %s && virsh -q undefine %[1]s", c.name))
		})
	}
}

func TestLabRepairsDrift(t *testing.T) {
	l := boot(t, "square4")
	l.must(t, "create", "--name", "d", "--vcpus", "2", "--memory", "64M", "--immediate")
	home := l.show(t, "d").Truth.Nodes.String()
	away := (int(home[0]-'0') + 1) % 4
	l.sh(t, fmt.Sprintf("virsh -q vcpupin d 0 %d --live", 2*away))
	if v := l.show(t, "d"); len(v.Truth.Differences) == 0 {
		t.Fatal("a vCPU was pinned to another CPU, and no drift was reported")
	}
	l.must(t, "bind", "d")
	if v := l.show(t, "d"); len(v.Truth.Differences) > 0 {
		t.Errorf("drift after repair: %v", v.Truth.Differences)
	}
}

func TestLabBindsAnyProcess(t *testing.T) {
	l := boot(t, "square4")
	pid := strings.TrimSpace(
		l.sh(
			t,
			`numactl --membind=0 --cpunodebind=0 sh -c 'head -c 100M /dev/zero | tail -c 100M | sleep 1000' >/dev/null 2>&1 &
until pid=$(pgrep -n -x tail) && kib=$(awk '/^VmRSS/ {print $2}' /proc/$pid/status) && [ "$kib" -gt 102400 ]; do sleep 0.2; done; echo $pid`,
		),
	)
	defer l.sh(t, "kill "+pid)
	l.must(t, "bind", "--pid", pid, "--nodes", "2")
	if out := l.sh(t, "numastat -p "+pid+" | tail -1"); !mostlyOn(out, 2) {
		t.Errorf("process %s is not on node 2: %s", pid, out)
	}
}

func TestLabRunsACommandBound(t *testing.T) {
	l := boot(t, "square4")
	r := l.numavisor(t, "run", "--nodes", "1", "--memory", "64M", "--vcpus", "1", "--memory-binding", "strict", "--",
		"sh", "-c", "grep -E 'allowed_list' /proc/self/status; exit 7")
	if r.status != 7 {
		t.Errorf("status %d, want the command's own 7", r.status)
	}
	if !strings.Contains(r.stdout, "Cpus_allowed_list:\t2-3") {
		t.Errorf("not on node 1's CPUs: %s", r.stdout)
	}
}
