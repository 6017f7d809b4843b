package e2e_test

import (
	"fmt"
	"strings"
	"testing"
)

// A VM that others started, in each of libvirt's memory modes and kinds of
// memory, is bound to node 3 while it runs.
func TestLabBindsRunningGuestsOfEveryKind(t *testing.T) {
	l := boot(t, "square4")
	for _, c := range []struct {
		name, numatune, backing, cells string
		status                         int    // 0, or 3 where a part cannot be done
		cannot                         string // then the report says this
	}{
		{"no numatune", "", "", "", 0, ""},
		{"no numatune, memfd", "", "<source type='memfd'/>", "", 0, ""},
		{"strict", "<memory mode='strict' nodeset='0'/>", "", "", 0, ""},
		{"strict, memfd", "<memory mode='strict' nodeset='0'/>", "<source type='memfd'/>", "", 0, ""},
		{"preferred", "<memory mode='preferred' nodeset='0'/>", "", "", 0, ""},
		{"preferred, memfd", "<memory mode='preferred' nodeset='0'/>", "<source type='memfd'/>", "", 0, ""},
		{"interleave", "<memory mode='interleave' nodeset='0-1'/>", "", "", 0, ""},
		{"restrictive", "<memory mode='restrictive' nodeset='0'/>", "", "", 0, ""},
		{"restrictive, memfd", "<memory mode='restrictive' nodeset='0'/>", "<source type='memfd'/>", "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.startForeign(t, foreign{name: "f", memoryMiB: 128, vcpus: 2, numatune: c.numatune, backing: c.backing, cells: c.cells})
			defer l.sh(t, "virsh -q destroy f")
			r := l.numavisor(t, "bind", "f", "--nodes", "3")
			if r.status != c.status || !strings.Contains(r.stdout, c.cannot) {
				t.Errorf("status %d, want %d:\n%s%s", r.status, c.status, r.stdout, r.stderr)
			}
			v := l.show(t, "f")
			v.vcpusIn(t, 1)
			v.memoryIn(t, 0.98)
			if got := v.Truth.Nodes.String(); got != "3" {
				t.Errorf("recorded nodes %q, want 3", got)
			}
		})
	}
}

func TestLabBindsCellsEachToItsNode(t *testing.T) {
	l := boot(t, "square4")
	cells := "<numa><cell id='0' cpus='0' memory='96' unit='MiB'/><cell id='1' cpus='1' memory='96' unit='MiB'/></numa>"
	for _, c := range []struct {
		name, numatune, backing string
	}{
		{"no numatune", "", ""},
		{"strict memfd", "<memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/>", "<source type='memfd'/>"},
		{"strict anonymous", "<memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/>", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.startForeign(t, foreign{name: "f", memoryMiB: 192, vcpus: 2, numatune: c.numatune, backing: c.backing, cells: cells})
			defer l.sh(t, "virsh -q destroy f")
			r := l.numavisor(t, "bind", "f", "--nodes", "2-3")
			if r.status != 0 && r.status != 3 {
				t.Fatalf("status %d: %s", r.status, r.stderr)
			}
			v := l.show(t, "f")
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
	for _, c := range []struct{ name, numatune, backing string }{
		{"no numatune", "", ""},
		{"strict memfd", "<memory mode='strict' nodeset='0'/>", "<source type='memfd'/>"},
		{"preferred", "<memory mode='preferred' nodeset='0'/>", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.startForeign(t, foreign{name: "f", memoryMiB: 128, vcpus: 2, numatune: c.numatune, backing: c.backing, kept: true})
			defer l.sh(t, "virsh -q destroy f; virsh -q undefine f")
			l.must(t, "bind", "f", "--nodes", "3")
			l.sh(t, "virsh -q destroy f && virsh -q start f --paused")
			v := l.show(t, "f")
			v.vcpusIn(t, 1)
			v.memoryIn(t, 0.98)
			if got := v.Truth.Nodes.String(); got != "3" || len(v.Truth.Differences) > 0 {
				t.Errorf("after a new start it is on nodes %q, drift %v", got, v.Truth.Differences)
			}
		})
	}
}

func TestLabRepairsDrift(t *testing.T) {
	l := boot(t, "square4")
	l.must(t, "create", "--name", "d", "--vcpus", "2", "--memory", "128M", "--immediate")
	defer l.must(t, "delete", "d")
	home := l.show(t, "d").Truth.Nodes.String()
	away := (int(home[0]-'0') + 1) % 4
	l.sh(t, fmt.Sprintf("virsh -q vcpupin d 0 %d --live", 2*away))
	if v := l.show(t, "d"); len(v.Truth.Differences) == 0 {
		t.Fatal("somebody pinned a vCPU elsewhere and no drift was seen")
	}
	l.must(t, "bind", "d")
	if v := l.show(t, "d"); len(v.Truth.Differences) > 0 {
		t.Errorf("drift after repair: %v", v.Truth.Differences)
	}
}

func TestLabBindsAnyProcess(t *testing.T) {
	l := boot(t, "square4")
	pid := strings.TrimSpace(l.sh(t, "numactl --membind=0 --cpunodebind=0 sh -c 'head -c 100M /dev/zero | tail -c 100M | sleep 1000' >/dev/null 2>&1 & sleep 3; pgrep -n tail"))
	defer l.sh(t, "kill "+pid)
	l.must(t, "bind", "--pid", pid, "--nodes", "2")
	if out := l.sh(t, "numastat -p "+pid+" | tail -1"); !mostlyOn(out, 2) {
		t.Errorf("process %s is not on node 2: %s", pid, out)
	}
}

func TestLabRunsACommandBound(t *testing.T) {
	l := boot(t, "square4")
	r := l.numavisor(t, "run", "--nodes", "1", "--memory", "64M", "--vcpus", "1", "--memory-binding", "strict", "--", "sh", "-c", "grep -E 'allowed_list' /proc/self/status; exit 7")
	if r.status != 7 {
		t.Errorf("status %d, want the command's own 7", r.status)
	}
	if !strings.Contains(r.stdout, "Cpus_allowed_list:\t2-3") {
		t.Errorf("not on node 1's CPUs: %s", r.stdout)
	}
}
