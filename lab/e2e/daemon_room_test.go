package e2e_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/rotate"
)

// keepFree is the memory that placing leaves free on each node of 1 GiB: the policy's default of 2 %.
const keepFree = 20 * topology.MiB

// ebb samples the free memory of all nodes twice a second until the caller
// calls low, which returns each node's minimum.
func (l *labHost) ebb(t *testing.T) (low func() topology.MemoryByNode) {
	t.Helper()
	l.sh(t, `cat > /run/ebb.sh <<'X'
low=(); while :; do
  for node in /sys/devices/system/node/node[0-9]*; do
    id=${node##*node}
    while read -r _ _ what kib _; do
      [ "$what" = MemFree: ] || continue
      (( ${low[id]:-kib} < kib )) || low[id]=$kib
      break
    done < $node/meminfo
  done
  for id in "${!low[@]}"; do echo $id ${low[id]}; done > /run/ebb.new; mv /run/ebb.new /run/ebb; sleep 0.5
done
X
setsid bash /run/ebb.sh >/dev/null 2>&1 & echo $! > /run/ebb.pid; until [ -e /run/ebb ]; do sleep 0.2; done`)
	t.Cleanup(func() { l.sh(t, "kill $(cat /run/ebb.pid); rm -f /run/ebb") })
	return func() topology.MemoryByNode {
		t.Helper()
		least := topology.MemoryByNode{}
		for line := range strings.Lines(l.sh(t, "cat /run/ebb")) {
			var node, kib int
			if n, err := fmt.Sscan(line, &node, &kib); n != 2 {
				t.Fatalf("the least free memory reads %q: %v", line, err)
			}
			least[topology.NodeID(node)] = topology.Bytes(kib) * topology.KiB
		}
		if len(least) != len(l.Shape.Nodes) {
			t.Fatalf("the least free memory is known of %v, there are %d nodes", least, len(l.Shape.Nodes))
		}
		return least
	}
}

// killed is how many processes the kernel has killed for lack of memory.
func (l *labHost) killed(t *testing.T) int {
	t.Helper()
	text := strings.TrimSpace(l.sh(t, "sed -n 's/^oom_kill //p' /proc/vmstat"))
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("oom_kill in /proc/vmstat reads %q", text)
	}
	return n
}

// poolOf is the file of a node's pool of huge pages.
const poolOf = "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages"

// fill leaves only the given memory of a node free, by huge pages that no VM
// uses: the kernel can neither reclaim nor move them.
func (l *labHost) fill(t *testing.T, node topology.NodeID, leftMiB int) {
	t.Helper()
	l.sh(t, fmt.Sprintf(`pool=`+poolOf+`
for try in 1 2 3; do
  free=$(sed -n 's/.*MemFree: *\([0-9]*\) kB/\1/p' /sys/devices/system/node/node%[1]d/meminfo)
  more=$(((free / 1024 - %d) / 2)); [ $more -le 0 ] || echo $(($(cat $pool) + more)) > $pool
done`, node, leftMiB))
}

// empty releases the pages that fill has taken.
func (l *labHost) empty(t *testing.T, node topology.NodeID) {
	t.Helper()
	l.sh(t, fmt.Sprintf("echo 0 > "+poolOf, node))
}

// arrival is for how long VMs are awaited after their moves: the kernel brings what was not in use when the VM uses it,
// and other tests may leave it a quarter of a CPU.
const arrival = 5 * time.Minute

// ends waits until each VM is on one node, and returns the node of each.
func (l *labHost) ends(t *testing.T, within time.Duration, names ...string) map[string]topology.NodeID {
	t.Helper()
	return l.awaitHomes(t, within, func(homes map[string]topology.NodeID) bool {
		for _, node := range homes {
			if node < 0 {
				return false
			}
		}
		return true
	}, names...)
}

// awaitHomes waits until the VMs are on the wanted nodes, and returns the node
// of each.
func (l *labHost) awaitHomes(t *testing.T, within time.Duration, wanted func(map[string]topology.NodeID) bool,
	names ...string,
) map[string]topology.NodeID {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(3 * time.Second) {
		homes := l.homes(t, names...)
		if wanted(homes) {
			return homes
		}
		if time.Now().After(end) {
			t.Fatalf("homes %v\n%s\n%s", homes, l.must(t, "history", "--records", "/run/records").stdout,
				l.sh(t, "numavisor top --once; tail -20 /run/daemon.log"))
		}
	}
}

// goesOn requires that a VM makes progress with its work.
func (l *labHost) goesOn(t *testing.T, name string) {
	t.Helper()
	before, err := l.Worked(name)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Second) {
		if now, err := l.Worked(name); err == nil && len(now) > len(before) {
			return
		}
		if time.Now().After(end) {
			t.Errorf("VM %s made no progress", name)
			return
		}
	}
}

// The best node for a VM is nearly full, with memory of no VM: the daemon
// chooses another node, and fills neither.
func TestLabDaemonWithANearlyFullTarget(t *testing.T) {
	rotate.Test(t, 1)
	l := boot(t, "square4")
	const policy = "housekeeping: 0-1" // the daemon cannot bring it back to its memory
	l.startWorker(t, worker{name: "h0", memoryMiB: 160, vcpus: 1, memory: 0, cpus: "6-7"})
	l.sh(t, "echo '"+policy+"' > /run/plan.yaml")
	best := func() topology.NodeID {
		var r plan.Plan
		if err := json.Unmarshal([]byte(l.must(t, "balance", "--policy", "/run/plan.yaml", "-o", "json").stdout),
			&r); err != nil {
			t.Fatal(err)
		}
		if len(r.Moves) != 1 || len(r.Moves[0].Guests) != 1 || r.Moves[0].Guests[0].Placement.Nodes.Len() != 1 {
			t.Fatalf("one move of h0 to one node is wanted: %s", r.Text())
		}
		to, _ := r.Moves[0].Guests[0].Placement.Nodes.First()
		return to
	}
	full := best()
	l.fill(t, full, 96)
	if next := best(); next == full {
		t.Errorf("still to go to node %d, which is full", next)
	}
	before, low := l.killed(t), l.ebb(t)
	l.work(t, 600, "h0")
	l.daemon(t, policy, "h0")
	ended := l.settled(t, 1, 2*time.Minute)
	home := l.ends(t, arrival, "h0")["h0"]
	if home == full || home == 0 {
		t.Errorf("it went to node %d; node %d is full, and it may not run on node 0", home, full)
	}
	for _, e := range ended {
		if e.Kind != journal.MoveDone {
			t.Errorf("ended as %+v", e)
		}
	}
	var copied topology.Bytes
	for _, e := range ended {
		copied += e.Moved
		t.Logf("%v copied in %v, of %v", e.Moved, e.Copied, e.Took)
		if e.Copied <= 0 || e.Copied > e.Took {
			t.Errorf("copied for %v of %v", e.Copied, e.Took)
		}
	}
	if rate := l.status(t).MoverBytesPerSecond; copied > 128*topology.MiB && rate == 0 {
		t.Errorf("%v were copied, and the daemon has not learned the rate", copied)
	} else {
		t.Logf("learned: %v a second", rate)
	}
	least := low()
	t.Logf("node %d was full, it went to node %d; the least that was free: %v", full, home, least)
	for node, free := range least {
		if free < keepFree {
			t.Errorf("only %v of node %d were free meanwhile; %v must stay free", free, node, keepFree)
		}
	}
	if n := l.killed(t) - before; n > 0 {
		t.Errorf("%d processes were killed for lack of memory", n)
	}
	l.goesOn(t, "h0")
}

// No node has room for one more VM: nodes 0 and 3 neither for its vCPUs nor for
// its memory, nodes 1 and 2 not for its vCPUs. Each of two VMs runs on the node of
// the other's memory: the daemon exchanges them.
func TestLabDaemonSwapsTwo(t *testing.T) {
	rotate.Test(t, 4)
	l := boot(t, "square4")
	const policy = "overcommit: 1"                // two vCPUs fill a node
	for i, cpus := range []string{"2-3", "4-5"} { // these are well placed, and unmanaged
		l.startForeign(
			t,
			foreign{
				name:      fmt.Sprintf("iown%d", i),
				memoryMiB: 48,
				vcpus:     2,
				numatune:  fmt.Sprintf("<memory mode='strict' nodeset='%d'/>", i+1),
				cputune: fmt.Sprintf(
					"<vcpupin vcpu='0' cpuset='%s'/><vcpupin vcpu='1' cpuset='%[1]s'/><emulatorpin cpuset='%[1]s'/>",
					cpus),
			},
		)
		name := fmt.Sprintf("iown%d", i)
		t.Cleanup(func() { l.sh(t, "virsh -q destroy "+name) })
		l.sh(t, "virsh -q resume "+name)
	}
	const size, left = 192, 160 // MiB
	l.startWorkers(t, worker{name: "i0", memoryMiB: size, vcpus: 2, memory: 0, cpus: "6-7", quota: 20},
		worker{name: "i1", memoryMiB: size, vcpus: 2, memory: 3, cpus: "0-1", quota: 20})
	l.fill(t, 0, left)
	l.fill(t, 3, left)
	before, low := l.killed(t), l.ebb(t)
	l.work(t, 600, "i0", "i1")
	l.daemon(t, policy, "i0", "i1")
	l.settled(t, 1, 2*time.Minute)
	homes := l.ends(t, arrival, "i0", "i1")
	if homes["i0"] == homes["i1"] {
		t.Errorf("homes %v: a node has room for one", homes)
	}
	for _, e := range l.journal(t, journal.MoveBegan) {
		t.Logf("%s: %s: %s", e.Kind, e.What, e.Why)
		if e.Move == nil || e.Move.Kind != plan.Swap || len(e.Move.Guests) != 2 {
			t.Errorf("no exchange, and nothing else has room: %+v", e)
		}
	}
	least := low()
	t.Logf("homes %v; the least that was free: %v", homes, least)
	for node, free := range least {
		if free < keepFree {
			t.Errorf("only %v of node %d were free meanwhile; %v must stay free", free, node, keepFree)
		}
	}
	if n := l.killed(t) - before; n > 0 {
		t.Errorf("%d processes were killed for lack of memory", n)
	}
	for i, node := range []topology.NodeID{1, 2} {
		if name := fmt.Sprintf("iown%d", i); l.homes(t, name)[name] != node {
			t.Errorf("%s was well placed on node %d, and is no longer there", name, node)
		}
	}
	l.goesOn(t, "i0")
	l.goesOn(t, "i1")
}
