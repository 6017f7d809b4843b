package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/rotate"
)

// A bind of 160 MiB at this rate takes long enough for something to happen in it.
const slowly = "10M"

// onNode0 makes a guest's memory begin on node 0: startBind waits for memory on
// node 3, so none may be there before the bind.
const onNode0 = "<memory mode='preferred' nodeset='0'/>"

// startBind begins to bind a guest to node 3, slowly, and returns when its
// memory has begun to arrive there.
func (l *labHost) startBind(t *testing.T, name string) {
	t.Helper()
	l.sh(t, fmt.Sprintf(`rm -f /run/bind.*
{ numavisor bind %[1]s --nodes 3 --pace %[2]s >/run/bind.out 2>/run/bind.err; echo $? >/run/bind.tmp; mv /run/bind.tmp /run/bind.rc; } >/dev/null 2>&1 &
until grep -vE 'file=/(usr|lab)' /proc/$(cat /run/libvirt/qemu/%[1]s.pid)/numa_maps | grep -qE ' N3=[0-9]{4,}'; do
  [ -e /run/bind.rc ] && { cat /run/bind.out /run/bind.err; exit 1; }; sleep 0.2; done`, name, slowly))
}

// endOfBind waits for the bind that startBind began.
func (l *labHost) endOfBind(t *testing.T) result {
	t.Helper()
	l.sh(t, "until [ -e /run/bind.rc ]; do sleep 0.2; done")
	var status int
	if _, err := fmt.Sscan(l.sh(t, "cat /run/bind.rc"), &status); err != nil {
		t.Fatal(err)
	}
	return result{status, l.sh(t, "cat /run/bind.out"), l.sh(t, "cat /run/bind.err")}
}

// claims are the reservations in flight, by file name; a finished action leaves none.
func (l *labHost) claims(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(l.sh(t, "ls /run/numavisor/claims 2>/dev/null || true"))
}

func (l *labHost) stateOf(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(l.sh(t, "virsh -q domstate "+name))
}

// finishes binds again without naming nodes, and requires that all memory is on the recorded nodes.
func (l *labHost) finishes(t *testing.T, name string) {
	t.Helper()
	l.must(t, "bind", name)
	v := l.show(t, name)
	v.vcpusIn(t, 1)
	v.memoryIn(t, 0.98)
	if got := v.Truth.Nodes.String(); got != "3" {
		t.Errorf("it was bound to nodes %q, not to 3 as was begun", got)
	}
	if left := l.claims(t); left != "" {
		t.Errorf("claims left behind: %s", left)
	}
}

// A bind may be interrupted in several ways: the guest stays as it is, the
// command shows what is missing, and the next bind finishes it.
func TestLabBindInterrupted(t *testing.T) {
	l := boot(t, "square4")
	const again = "run 'numavisor bind f' again to finish"
	for i, c := range []struct {
		signal string
		status int
		says   string
	}{{"KILL", 137, ""}, {"INT", 3, again}, {"TERM", 3, again}} {
		if !rotate.Turn(i) {
			continue
		}
		t.Run(c.signal, func(t *testing.T) {
			l.startForeign(t,
				foreign{name: "f", memoryMiB: 160, vcpus: 2, numatune: "<memory mode='strict' nodeset='0'/>"})
			defer l.sh(t, "virsh -q destroy f")
			l.startBind(t, "f")
			l.sh(t, "pkill -"+c.signal+" -x numavisor")
			if r := l.endOfBind(t); r.status != c.status || !strings.Contains(r.stderr, c.says) {
				t.Errorf("status %d, want %d and %q:\n%s%s", r.status, c.status, c.says, r.stdout, r.stderr)
			}
			if s := l.stateOf(t, "f"); s != "paused" {
				t.Errorf("the guest is %s, was paused", s)
			}
			if v := l.show(t, "f"); len(v.Truth.Differences) == 0 {
				t.Errorf("partly bound, and no difference is shown: %+v", v.Truth)
			}
			l.finishes(t, "f")
		})
	}
}

func TestLabGuestEndsDuringBind(t *testing.T) {
	l := boot(t, "square4")
	l.startForeign(t, foreign{name: "f", memoryMiB: 160, vcpus: 2, numatune: onNode0})
	l.startBind(t, "f")
	l.sh(t, "virsh -q destroy f")
	r := l.endOfBind(t)
	// 3 where the guest ended while memory was copied, 1 where it ended before a step.
	if r.status != 1 && r.status != 3 || !strings.Contains(r.stderr, "has ended") {
		t.Errorf("status %d, want 1 or 3 and that the guest has ended:\n%s%s", r.status, r.stdout, r.stderr)
	}
	if left := l.claims(t); left != "" {
		t.Errorf("claims left behind: %s", left)
	}
	if out := l.must(t, "list").stdout; strings.Contains(out, "f ") {
		t.Errorf("listed after its end: %s", out)
	}
}

// libvirtd rewrites the limits of thread groups when it starts. The bind must
// survive that, or report what it lost.
func TestLabLibvirtdRestartsDuringBind(t *testing.T) {
	l := boot(t, "square4")
	l.startForeign(
		t,
		foreign{
			name:      "f",
			memoryMiB: 160,
			vcpus:     2,
			numatune:  onNode0,
			backing:   "<source type='memfd'/><access mode='shared'/>",
		},
	)
	defer l.sh(t, "virsh -q destroy f")
	l.startBind(t, "f")
	l.restartLibvirtd(t)
	r := l.endOfBind(t)
	t.Logf("libvirtd restarted during a bind: status %d", r.status)
	if r.status != 0 && (r.status != 3 || !strings.Contains(r.stderr, "binding f ")) {
		t.Errorf("status %d, want 0, or 3 and the steps that failed:\n%s%s", r.status, r.stdout, r.stderr)
	}
	l.finishes(t, "f")
	l.restartLibvirtd(t)
	if v := l.show(t, "f"); len(v.Truth.Differences) > 0 {
		t.Errorf("a restart of libvirtd undid the binding: %v", v.Truth.Differences)
	}
}

func (l *labHost) stopLibvirtd(t *testing.T) {
	t.Helper()
	l.sh(t, "pkill -x libvirtd; while pgrep -x libvirtd >/dev/null; do sleep 0.1; done")
}

func (l *labHost) startLibvirtd(t *testing.T) {
	t.Helper()
	l.sh(t, "setsid libvirtd >>/run/libvirtd.log 2>&1 & until virsh -q list >/dev/null 2>&1; do sleep 0.3; done")
}

func (l *labHost) restartLibvirtd(t *testing.T) {
	t.Helper()
	l.stopLibvirtd(t)
	l.startLibvirtd(t)
}

// A node fills up while memory moves to it: bind leaves the memory without room
// where it is and reports it, and the next bind moves it when the node has room
// again.
func TestLabTargetNodeFillsUp(t *testing.T) {
	rotate.Test(t, 4)
	l := boot(t, "square4")
	l.startForeign(t, foreign{name: "f", memoryMiB: 192, vcpus: 2, numatune: onNode0})
	l.startBind(t, "f")
	l.fill(t, 3, 32)
	r := l.endOfBind(t)
	// The kernel says so for some pages, or for a whole call.
	if r.status != 3 || !strings.Contains(r.stderr, "ENOMEM") && !strings.Contains(r.stderr, unix.ENOMEM.Error()) {
		t.Errorf("status %d, want 3 and ENOMEM:\n%s%s", r.status, r.stdout, r.stderr)
	}
	if v := l.show(t, "f"); len(v.Truth.Differences) == 0 || v.Truth.MemoryOnIntended == nil ||
		*v.Truth.MemoryOnIntended > 0.98 {
		t.Errorf("part of it did not move, and no drift is shown: %+v", v.Truth)
	}
	l.empty(t, 3)
	if s := l.stateOf(t, "f"); s != "paused" {
		t.Errorf("the guest is %s, was paused", s)
	}
	l.finishes(t, "f")
}

// Five processes at once request two exclusive CPUs each, on a host of eight: four
// get them, and no CPU is exclusive to two VMs.
func TestLabCreatesAtOnceNeverShareRoom(t *testing.T) {
	rotate.Test(t, 0)
	l := boot(t, "square4")
	names := []string{"e1", "e2", "e3", "e4", "e5"}
	defer l.sh(t, "for n in "+strings.Join(names, " ")+"; do numavisor delete $n >/dev/null 2>&1; done; true")
	l.sh(t, `for n in `+strings.Join(names, " ")+`; do
  { numavisor create --name $n --vcpus 2 --memory 64M --cpu-binding exclusive --memory-binding strict --topology off >/run/$n.out 2>/run/$n.err; echo $? >/run/$n.rc; } &
done; wait`)
	statuses := strings.Fields(l.sh(t, "cat /run/e[1-5].rc"))
	made := 0
	var taken topology.CPUSet
	for i, name := range names {
		switch statuses[i] {
		case "0":
			made++
			for _, th := range l.show(t, name).Threads {
				if th.VCPU == nil {
					continue
				}
				if th.Affinity.Len() != 1 || th.Affinity.Intersects(taken) {
					t.Errorf("vCPU %d of %s may run on CPUs %s; others have %s", *th.VCPU, name, th.Affinity, taken)
				}
				taken = taken.Union(th.Affinity)
			}
		case "1":
			if text := l.sh(t, "cat /run/"+name+".err"); !strings.Contains(text, "CPU") {
				t.Errorf("%s was refused without naming CPUs: %s", name, text)
			}
		default:
			t.Errorf("creating %s: status %s, %s", name, statuses[i], l.sh(t, "cat /run/"+name+".err"))
		}
	}
	if made != 4 || taken.Len() != 8 {
		t.Errorf("%d of 4 were created, on CPUs %s", made, taken)
	}
	if left := l.claims(t); left != "" {
		t.Errorf("claims left behind: %s", left)
	}
}

// Without libvirt's daemon Numavisor refuses to place; it shows what it can
// observe.
func TestLabWithoutLibvirtd(t *testing.T) {
	l := boot(t, "square4")
	l.stopLibvirtd(t)
	defer l.startLibvirtd(t)
	for _, args := range [][]string{
		{"create", "--name", "n", "--vcpus", "1", "--memory", "64M"}, {"place", "--vcpus", "1", "--memory",
			"64M"}, {"balance"}, {"bind", "n"}, {"delete", "n"}, {"show", "n"},
	} {
		r := l.numavisor(t, args...)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		if r.status != 1 || len(lines) != 2 || !strings.HasPrefix(lines[1], "  cause: ") ||
			!strings.Contains(lines[1], "libvirtd") {
			t.Errorf("numavisor %s: status %d, want 1, one line, and libvirtd as its cause: %q",
				strings.Join(args, " "), r.status, r.stderr)
		}
	}
	for _, command := range []string{"list", "doctor", "capture"} {
		if r := l.numavisor(t, command); r.status != 3 || r.stdout == "" ||
			!strings.Contains(r.stderr, "incomplete: the VMs of qemu were not seen") {
			t.Errorf("numavisor %s: status %d, want 3, what is seen and what is not: %q", command, r.status, r.stderr)
		}
	}
	if r := l.numavisor(t, "topology"); r.status != 0 {
		t.Errorf("the topology does not need libvirtd: status %d, %s", r.status, r.stderr)
	}
	if left := l.claims(t); left != "" {
		t.Errorf("claims left behind: %s", left)
	}
}

func TestLabWithoutRoot(t *testing.T) {
	l := boot(t, "square4")
	l.startForeign(t, foreign{name: "f", memoryMiB: 64, vcpus: 1})
	defer l.sh(t, "virsh -q destroy f")
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "numavisor"}
	if r := l.run(t, append(nobody, "topology")...); r.status != 0 {
		t.Errorf("the topology does not need root: status %d, %s", r.status, r.stderr)
	}
	for _, args := range [][]string{{"bind", "f", "--nodes", "3"}, {"create", "--name", "n", "--vcpus", "1", "--memory",
		"64M"}} {
		r := l.run(t, append(nobody, args...)...)
		if r.status != 1 || !strings.Contains(r.stderr, "root") && !strings.Contains(r.stderr, "permission denied") {
			t.Errorf("numavisor %s: status %d, want 1 and what is not permitted: %s", strings.Join(args, " "), r.status,
				r.stderr)
		}
	}
	if s := l.stateOf(t, "f"); s != "paused" {
		t.Errorf("the guest is %s, was paused", s)
	}
}
