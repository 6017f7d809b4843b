package e2e_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/rotate"
)

// worker is an unmanaged VM that works on its memory from the test's start
// signal on.
type worker struct {
	name      string
	memoryMiB int
	vcpus     int
	memory    int    // the node that its memory begins on; it may move from there
	cpus      string // it runs there; empty: anywhere
	// quota is the share of a CPU that its vCPUs may use, in percent; 0: a quarter.
	// All CPUs of the lab share two real ones: a VM that works all the time slows
	// the host down.
	quota int
}

// startWorker starts a VM with its memory on one node and its vCPUs elsewhere,
// without any limits: the result of a mass start or of an operator's change.
func (l *labHost) startWorker(t *testing.T, w worker) {
	t.Helper()
	l.startWorkers(t, w)
}

// startWorkers is startWorker for several that boot at the same time.
func (l *labHost) startWorkers(t *testing.T, all ...worker) {
	t.Helper()
	for _, w := range all {
		l.createWorker(t, w)
	}
	for _, w := range all {
		if err := l.AwaitGuest(l.ctx, w.name); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range all {
		l.letGo(t, w)
	}
}

func (l *labHost) createWorker(t *testing.T, w worker) {
	t.Helper()
	xml := fmt.Sprintf(
		`<domain type='kvm'><name>%s</name><memory unit='MiB'>%d</memory><vcpu>%d</vcpu><numatune><memory mode='restrictive' nodeset='%d'/></numatune>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os><features><acpi/></features>
<cpu mode='host-passthrough'/><devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
		w.name,
		w.memoryMiB,
		w.vcpus,
		w.memory,
		lab.GuestKernel,
		lab.GuestInitrd,
		lab.GuestCommandLine,
	)
	// The kernel's own balancing would move memory before the test observes anything,
	// and makes every change of a busy VM's limits wait for its scans, which run
	// some 30 times slower here.
	l.sh(t, "echo 0 > /proc/sys/kernel/numa_balancing; cat > /run/w.xml <<'X'\n"+xml+"\nX\nvirsh -q create /run/w.xml")
	t.Cleanup(func() {
		l.run(t, "virsh", "-q", "destroy", w.name)
		l.sh(t, "echo 1 > /proc/sys/kernel/numa_balancing")
	})
}

// letGo pins a VM's vCPUs to their CPUs and lets its memory be on any node.
func (l *labHost) letGo(t *testing.T, w worker) {
	t.Helper()
	on := w.cpus
	if on == "" {
		on = fmt.Sprintf("0-%d", 2*len(l.Shape.Nodes)-1)
	}
	var script strings.Builder
	for v := range w.vcpus {
		fmt.Fprintf(&script, "virsh -q vcpupin %s %d %s || exit\n", w.name, v, on)
	}
	fmt.Fprintf(&script, "virsh -q schedinfo %s --live vcpu_period=100000 vcpu_quota=%d >/dev/null || exit\n", w.name,
		cmp.Or(w.quota, 25)*1000)
	fmt.Fprintf(&script,
		"virsh -q emulatorpin %s %s && virsh -q numatune %[1]s --mode restrictive --nodeset 0-%[3]d --live", w.name, on,
		len(l.Shape.Nodes)-1)
	l.sh(t, script.String())
}

// work lets VMs work for a while.
func (l *labHost) work(t *testing.T, seconds int, names ...string) {
	t.Helper()
	if err := l.StartWork(l.ctx, names, time.Second, seconds); err != nil {
		t.Fatal(err)
	}
}

// daemon starts a daemon in the lab that may move the named VMs; it is
// stopped when the test ends, and its records are new.
func (l *labHost) daemon(t *testing.T, policy string, auto ...string) {
	t.Helper()
	l.setPolicy(t, policy, auto...)
	l.startDaemon(t)
	t.Cleanup(func() { l.stopDaemon(t, "TERM") })
}

// setPolicy writes the policy of a daemon that may move the named VMs, and removes the records of others.
func (l *labHost) setPolicy(t *testing.T, policy string, auto ...string) {
	t.Helper()
	policy = "balance:\n  degraded_for: 3s\n  guests: {" + strings.Join(auto, ": auto, ") + ": auto}\n" + policy
	l.sh(t, "rm -rf /run/records; cat > /run/policy.yaml <<'X'\n"+policy+"\nX")
}

// startDaemon starts a daemon. It runs programs from the folder /run/first, if that exists, in place of others.
func (l *labHost) startDaemon(t *testing.T, flags ...string) {
	t.Helper()
	l.sh(
		t,
		`PATH=/run/first:$PATH setsid numavisor daemon --policy /run/policy.yaml --records /run/records `+strings.Join(flags, " ")+` >> /run/daemon.log 2>&1 & echo $! > /run/daemon.pid
for i in $(seq 60); do numavisor top --once >/dev/null 2>&1 && exit; kill -0 $(cat /run/daemon.pid) || break; sleep 0.5; done; cat /run/daemon.log; exit 1`,
	)
}

func (l *labHost) stopDaemon(t *testing.T, signal string) {
	t.Helper()
	l.sh(
		t,
		`pid=$(cat /run/daemon.pid); kill -`+signal+` $pid 2>/dev/null; for i in $(seq 240); do kill -0 $pid 2>/dev/null || exit 0; sleep 0.5; done; exit 1`,
	)
}

// journal returns the entries of the given kinds from the daemon's journal; all
// entries if no kind is given.
func (l *labHost) journal(t *testing.T, kinds ...journal.Kind) []journal.Entry {
	t.Helper()
	return slices.DeleteFunc(l.history(t, "--records", "/run/records"),
		func(e journal.Entry) bool { return len(kinds) > 0 && !slices.Contains(kinds, e.Kind) })
}

func (l *labHost) status(t *testing.T) status.Status {
	t.Helper()
	var s status.Status
	if err := json.Unmarshal([]byte(l.must(t, "top", "-o", "json").stdout), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// ends are the kinds of entries that end a move.
var ends = []journal.Kind{journal.MoveDone, journal.MovePartial, journal.MoveFailed, journal.MoveUndone}

// awaitEntries waits inside the lab until the daemon's journal has count
// entries of the given kinds. Polling from outside would cost the lab seconds
// each time.
func (l *labHost) awaitEntries(t *testing.T, count int, within time.Duration, kinds ...journal.Kind) {
	t.Helper()
	script := fmt.Sprintf(`for i in $(seq %d); do
  [ "$(grep -cE '%s' /run/records/history.jsonl 2>/dev/null || true)" -ge %d ] && exit; sleep 0.5
done; exit 1`, int(within.Seconds()*2), entriesOf(kinds...), count)
	if r := l.run(t, "bash", "-c", script); r.status != 0 {
		t.Fatalf("after %v there are fewer than %d entries of %v:\n%s\n%s", within, count, kinds,
			l.must(t, "history", "--records", "/run/records").stdout,
			l.sh(t, "numavisor top --once; tail -20 /run/daemon.log"))
	}
}

// entriesOf returns a regular expression for the lines of a journal that are entries of the given kinds.
func entriesOf(kinds ...journal.Kind) string {
	var patterns []string
	for _, k := range kinds {
		patterns = append(patterns, fmt.Sprintf(`"kind":"%s"`, k))
	}
	return strings.Join(patterns, "|")
}

// settled waits until the given number of moves have ended, and returns their
// last entries.
func (l *labHost) settled(t *testing.T, moves int, within time.Duration) []journal.Entry {
	t.Helper()
	l.awaitEntries(t, moves, within, ends...)
	return l.journal(t, ends...)
}

// homes returns for each VM the node that holds its memory and runs its vCPUs; -1 if there is no one such node.
// The memory of QEMU itself, some 20 MiB, may be elsewhere, and where the kernel brought the memory, what the VM
// hardly uses, a fifth with that of QEMU: the daemon moves both when the host has been quiet.
func (l *labHost) homes(t *testing.T, names ...string) map[string]topology.NodeID {
	t.Helper()
	homes := map[string]topology.NodeID{}
	var list struct {
		Guests []struct {
			Guest        string                  `json:"guest"`
			VCPUs        int                     `json:"vcpus"`
			MemoryByNode topology.MemoryByNode   `json:"memory_by_node"`
			VCPUsByNode  map[topology.NodeID]int `json:"vcpus_by_node"`
		} `json:"guests"`
	}
	if err := json.Unmarshal([]byte(l.must(t, "list", "-o", "json").stdout), &list); err != nil {
		t.Fatal(err)
	}
	for _, g := range list.Guests {
		if !slices.Contains(names, g.Guest) {
			continue
		}
		homes[g.Guest] = -1
		var total topology.Bytes
		for _, bytes := range g.MemoryByNode {
			total += bytes
		}
		for node, bytes := range g.MemoryByNode {
			if bytes+max(32*topology.MiB, total/5) >= total && g.VCPUsByNode[node] == g.VCPUs {
				homes[g.Guest] = node
			}
		}
	}
	if len(homes) != len(names) {
		t.Fatalf("of %v only %v are listed", names, homes)
	}
	return homes
}

// All memory is on one node after a mass start, and the vCPUs are wherever the
// scheduler has room: each VM ends on one node, and no node gets more vCPUs than
// it has CPUs.
func TestLabDaemonAfterAMassStart(t *testing.T) {
	l := boot(t, "square4")
	names := []string{"b0", "b1", "b2"}
	var workers []worker
	for _, name := range names {
		workers = append(workers, worker{name: name, memoryMiB: 160, vcpus: 1, memory: 0})
	}
	l.startWorkers(t, workers...)
	l.work(t, 600, names...)
	// atMostTwoOnANode waits for the cooldown. The longer the lab runs, the more often its emulator fails.
	l.daemon(t, "  cooldown: 30s\n", names...)
	l.settled(t, 1, 4*time.Minute)
	l.atMostTwoOnANode(t, names)
	for _, e := range l.journal(t, journal.MoveBegan) {
		if e.Why == "" || e.Move == nil {
			t.Errorf("a move without a reason: %+v", e)
		}
	}
}

// atMostTwoOnANode waits until each VM is on one node, and no node, of two CPUs
// each, has more than two. On a slow machine the emulated CPUs seem idle for most
// of the time at first. The daemon then puts all on one node, and may move none of
// them before the cooldown is over: five minutes, unless the policy says otherwise.
func (l *labHost) atMostTwoOnANode(t *testing.T, names []string) {
	t.Helper()
	l.awaitHomes(t, 8*time.Minute, func(homes map[string]topology.NodeID) bool {
		on := map[topology.NodeID]int{}
		for _, n := range homes {
			on[n]++
		}
		return on[-1] == 0 && max(on[0], on[1], on[2], on[3]) <= 2
	}, names...)
}

// One node's CPUs are overloaded, all others idle: VMs leave, memory and all.
func TestLabDaemonRelievesAnOverloadedNode(t *testing.T) {
	rotate.Test(t, 3)
	l := boot(t, "square4")
	names := []string{"c0", "c1", "c2", "c3"}
	var workers []worker
	for _, name := range names {
		workers = append(workers, worker{name: name, memoryMiB: 96, vcpus: 1, memory: 1, cpus: "2-3", quota: 70})
	}
	l.startWorkers(t, workers...)
	l.work(t, 600, names...)
	l.daemon(t, "", names...)
	l.settled(t, 1, 4*time.Minute)
	l.atMostTwoOnANode(t, names)
}

// Two VMs each run on the node of the other's memory, and no other node has room:
// each ends on one node, and not on the same.
func TestLabDaemonExchangesTwoOrMovesOne(t *testing.T) {
	rotate.Test(t, 1)
	l := boot(t, "square4")
	const size, left = 160, 128 // MiB
	l.startWorkers(t, worker{name: "e0", memoryMiB: size, vcpus: 1, memory: 0, cpus: "6-7"},
		worker{name: "e1", memoryMiB: size, vcpus: 1, memory: 3, cpus: "0-1"})
	for node := range topology.NodeID(4) {
		l.fill(t, node, left)
	}
	l.work(t, 600, "e0", "e1")
	l.daemon(t, "", "e0", "e1")
	l.settled(t, 1, 4*time.Minute)
	l.awaitHomes(t, 2*time.Minute, func(homes map[string]topology.NodeID) bool {
		return homes["e0"] != homes["e1"] && homes["e0"] >= 0 && homes["e1"] >= 0
	}, "e0", "e1")
}

// The daemon records a VM that dies in the middle of a move, and continues.
func TestLabDaemonLosesAGuestDuringAMove(t *testing.T) {
	rotate.Test(t, 5)
	l := boot(t, "square4")
	l.startWorker(t, worker{name: "f0", memoryMiB: 160, vcpus: 1, memory: 0, cpus: "6-7"})
	l.work(t, 600, "f0")
	l.daemon(t, "  pace: 8MiB\nhousekeeping: 0-1",
		"f0") // its memory must leave node 0, slowly enough for the test to interrupt the move
	l.awaitEntries(t, 1, 2*time.Minute, journal.MoveBegan)
	l.sh(t, "virsh -q destroy f0")
	ended := l.settled(t, 1, time.Minute)
	if e := ended[0]; e.Kind != journal.MoveFailed || !strings.Contains(e.Why, "has ended") {
		t.Errorf("ended as %+v", e)
	}
	if s := l.status(t); len(s.Moving) != 0 {
		t.Errorf("still moving %+v", s.Moving)
	}
	if claims := l.sh(t, "ls /run/numavisor/claims"); claims != "" {
		t.Errorf("claims left behind: %s", claims)
	}
}

// kill -9 during a move: the VM keeps running, and the next daemon finishes the move.
func TestLabDaemonKilledDuringAMove(t *testing.T) {
	rotate.Test(t, 2)
	l := boot(t, "square4")
	l.startWorker(t, worker{name: "g0", memoryMiB: 160, vcpus: 1, memory: 0, cpus: "6-7"})
	l.work(t, 600, "g0")
	l.daemon(t, "  pace: 16MiB\nhousekeeping: 0-1", "g0")
	l.awaitEntries(t, 1, 2*time.Minute, journal.MoveBegan)
	l.stopDaemon(t, "KILL")
	before, err := l.Worked("g0")
	if err != nil {
		t.Fatal(err)
	}
	if open := journal.InterruptedMoves(l.journal(t)); len(open) != 1 {
		t.Fatalf("not interrupted: %+v", l.journal(t))
	}
	l.startDaemon(t)
	ended := l.settled(t, 1, 4*time.Minute)
	if ended[0].Kind != journal.MoveDone || ended[0].By != "restart" {
		t.Errorf("ended as %+v", ended[0])
	}
	if home := l.homes(t, "g0")["g0"]; home < 0 {
		t.Errorf("g0 is not on one node: %+v", l.show(t, "g0").Truth)
	}
	if after, err := l.Worked("g0"); err != nil || len(after) <= len(before) {
		t.Errorf("the VM does not work: %d lines before, %d after: %v", len(before), len(after), err)
	}
}

// The daemon uses the access counter as its source while the counter is on, by vCPU
// and node.
func TestLabDaemonSeesAccesses(t *testing.T) {
	rotate.Test(t, 5)
	l := boot(t, "square4")
	l.startWorkers(t, worker{name: "far", memoryMiB: 160, vcpus: 1, memory: 3, cpus: "0"},
		worker{name: "near", memoryMiB: 160, vcpus: 1, memory: 2, cpus: "4"})
	l.must(t, "lab", "scope", "count")
	defer l.must(t, "lab", "scope", "off")
	l.work(t, 600, "far", "near")
	l.daemon(t, "  mode: advise", "far", "near")
	l.hostAside(t, "2,6") // the counter is of CPUs: what the host's programs access on those of the VMs counts too
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Second) {
		s := l.status(t)
		shares := map[string]float64{}
		for _, g := range s.Sample.Guests {
			if r := g.Load.Remote; r != nil && r.Source == inventory.AccessCounter {
				shares[g.Name] = r.Share
			}
		}
		if len(shares) == 2 && shares["far"] > 0.9 && shares["near"] < 0.1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("remote shares by the access counter: %v\n%s", shares, l.sh(t, "numavisor top --once"))
		}
	}
	// A plan by hand uses the same source.
	if r := l.must(t, "balance", "--explain"); strings.Contains(r.stderr, "loads are not known") ||
		!strings.Contains(r.stdout, "lab access counter") {
		t.Errorf("balance while a daemon runs: %s%s", r.stderr, r.stdout)
	}
	var inv inventory.Host
	if err := json.Unmarshal([]byte(l.must(t, "capture").stdout), &inv); err != nil {
		t.Fatal(err)
	}
	for _, g := range inv.Guests {
		if g.Seen.Load == nil || len(inv.Load) != len(l.Shape.Nodes) {
			t.Errorf("captured while a daemon runs: load of %s %+v, of %d nodes", g.Name, g.Seen.Load, len(inv.Load))
		}
	}
}
