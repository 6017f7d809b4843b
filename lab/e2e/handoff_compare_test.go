package e2e_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/cputime"
)

// sharedShape is a host of two nodes. Every access of the work to memory that misses the cache is delayed, and the
// delays take no time of the real processors: so an emulated CPU hardly works faster when others are idle. Kernels and
// agents are not delayed: they run thirty to a hundred times slower than on hardware as they are. The clock is slow, so
// that two real processors carry six busy CPUs, and kernels take less of the time. The work is slow as well.
const sharedShape = `name: shared
nodes: [{cpus: 4, memory: 2G}, {cpus: 4, memory: 2G}]
distances: [[10, 16], [16, 10]]
latency_ns: [[85, 140], [140, 85]]
delay_local: true
delay_scale: 1000
marked: true
slowdown: 8
`

const (
	sharedPolicy = "handoff:\n  cpus: 1-3,5-7\n"
	sharedHost   = "0,4"
	sharedCPUs   = "1-3,5-7"
	// sharedLines is the work of a thread between two barriers: some 25 ms of delays.
	sharedLines = 300
	// slot is how long a number of threads stays, in ms.
	slot = 4_000
	// settled is after how long VMs that do nothing have no more than their minimum of CPUs.
	settled = 2 * time.Second
	// byTurns is until when VMs are busy by turns.
	byTurns = 4 * slot * time.Millisecond
)

// sharedThreads are the threads of each VM in each slot. In the first one all have one thread: the kernels of the VMs
// balance memory from a second after a program's start on. Then each is busy for a third of the time, with as many
// threads as the others leave CPUs, and in the second half others overlap.
var sharedThreads = map[string][]int{
	"m1": {1, 4, 1, 1, 4, 1, 1},
	"m2": {1, 1, 4, 1, 1, 4, 3},
	"m3": {1, 1, 1, 4, 3, 1, 4},
}

// outcome is what one way to share gave.
type outcome struct {
	way     string
	steps   int
	worst   time.Duration // mean time between two barriers in the worst second of any VM, while VMs are busy by turns
	crowded time.Duration // the same while they want more CPUs than there are
	alone   time.Duration // mean time of a step in the worst second of a VM with one thread, which meets no other
	longest time.Duration
	steal   float64 // seconds, as the VMs' kernels saw it
	local   float64 // share of misses of the VMs' CPUs
	seen    testimony
	rises   []float64 // ms until a vCPU that was not in use worked
	others  float64   // share of the real machine that other programs used
	used    float64   // share of the real machine that the lab used
}

// Three mirrored VMs, busy by turns, share six CPUs in three ways, in turn: each has a third of them; all vCPUs run on
// all CPUs under the host's scheduler; CPUs are handed over. 'make bench-sharing' prints the figures.
func TestLabHandoffCompared(t *testing.T) {
	repeats, err := strconv.Atoi(os.Getenv("NUMAVISOR_HANDOFF_REPEATS"))
	if err != nil {
		t.Skip("a measurement: 'make bench-sharing' runs it")
	}
	known := []string{"thirds", "overcommitted", "hand-over"}
	ways := strings.Fields(cmp.Or(os.Getenv("NUMAVISOR_HANDOFF_WAYS"), strings.Join(known, " ")))
	for _, way := range ways {
		if !slices.Contains(known, way) {
			t.Fatalf("WAYS: %q is not one of %q", way, known)
		}
	}
	l := bootShared(t)
	var all []outcome
	for i := range repeats {
		for j := range ways {
			all = append(all, l.share(t, ways[(i+j)%len(ways)]))
			t.Log("\n" + tableOf(all[len(all)-1:]))
		}
	}
	slices.SortStableFunc(all, func(a, b outcome) int { return strings.Compare(a.way, b.way) })
	t.Log("\n" + tableOf(all))
}

func bootShared(t *testing.T) *labHost {
	t.Helper()
	shape := filepath.Join(t.TempDir(), "shared.yaml")
	if err := os.WriteFile(shape, []byte(sharedShape), 0o600); err != nil {
		t.Fatal(err)
	}
	l := bootHandoff(t, shape, sharedPolicy, sharedHost)
	l.createMirrored(t, "m1", "m2", "m3")
	l.awaitGuests(t, "m1", "m2", "m3")
	counter, err := l.Scope()
	if err != nil {
		t.Fatal(err)
	}
	if err := counter.Set(t.Context(), labcounter.Felt); err != nil {
		t.Fatal(err)
	}
	return l
}

// share lets the VMs work once.
func (l *labHost) share(t *testing.T, way string) outcome {
	t.Helper()
	names := []string{"m1", "m2", "m3"}
	l.prepare(t, way, names)
	counter, err := l.Scope()
	if err != nil {
		t.Fatal(err)
	}
	l.prepareWork(t, names)
	if err := counter.Reset(); err != nil {
		t.Fatal(err)
	}
	runs, rises := map[string]int{}, map[string]int{}
	for _, name := range names {
		runs[name], rises[name] = len(l.said(t, name, "RUN")), len(l.said(t, name, "RISE"))
	}
	end, clock := l.witness(t, 200*time.Millisecond), cputime.Start()
	dones := len(l.said(t, "m1", "DONE"))
	if err := l.TypeAll(l.ctx, names, "go"); err != nil {
		t.Fatal(err)
	}
	l.awaitSaid(t, names, "DONE", dones+1)
	o := outcome{way: way, others: clock.Others(), used: clock.Share(), seen: end()}
	misses, err := counter.Read()
	if err != nil {
		t.Fatal(err)
	}
	o.local = localShare(misses)
	for _, name := range names {
		o.add(t, name, l.said(t, name, "RUN")[runs[name]:])
		for _, f := range l.said(t, name, "RISE")[rises[name]:] {
			if us, err := strconv.Atoi(f[1]); err == nil {
				o.rises = append(o.rises, float64(us)/1000)
			}
		}
	}
	if way == "hand-over" {
		for _, v := range o.seen.Violations {
			t.Error(v)
		}
	}
	return o
}

// prepareWork lets the VMs make their threads, and waits until the CPUs that this took are free again. So all begin to
// work at once, and what is measured is by turns: a slow VM takes a second to make threads.
func (l *labHost) prepareWork(t *testing.T, names []string) {
	t.Helper()
	ready := len(l.said(t, names[0], "READY"))
	for _, name := range names {
		l.types(t, name, orderOf(name))
	}
	l.awaitSaid(t, names, "READY", ready+1)
	time.Sleep(settled * time.Duration(l.Shape.Slowdown))
}

func orderOf(name string) string {
	order := fmt.Sprintf("ready %d %d", sharedLines, len(sharedThreads[name])*slot/1000)
	for i, n := range sharedThreads[name] {
		order += fmt.Sprintf(" %d %d", i*slot, n)
	}
	return order
}

// add adds the reports of a VM.
func (o *outcome) add(t *testing.T, name string, lines [][]string) {
	t.Helper()
	var before, last report
	for _, f := range lines {
		last = parseReport(t, f)
		if last.rounds > 0 {
			mean, middle := (last.at-before.at)/time.Duration(last.rounds), (last.at+before.at)/2
			switch at := min(int(middle/(slot*time.Millisecond)), len(sharedThreads[name])-1); {
			case sharedThreads[name][at] == 1:
				o.alone = max(o.alone, mean)
			case middle < byTurns:
				o.worst = max(o.worst, mean)
			default:
				o.crowded = max(o.crowded, mean)
			}
			o.longest = max(o.longest, last.longest)
		}
		before = last
	}
	o.steps += last.steps
	o.steal += last.steal
}

// The worst second counts VMs whose threads meet at barriers: by turns, and while they want more CPUs than there are. A
// second belongs to the slot in which its middle is.
func TestWorstSecondIsOfThreadsThatMeet(t *testing.T) {
	var o outcome
	for _, c := range []struct{ name, reports string }{
		{"m1", "4000 0 0 0 0; 5000 80 20 90000 1; 9010 200 100 40000 2; 16020 300 70 0 3; 17020 340 10 120000 4"},
		{"m3", "1000 10 10 200000 0; 2000 10 0 0 0; 32000 400 600 0 5"},
	} {
		var lines [][]string
		for text := range strings.SplitSeq(c.reports, ";") {
			lines = append(lines, append([]string{"RUN"}, strings.Fields(text)...))
		}
		o.add(t, c.name, lines)
	}
	const ms = time.Millisecond
	if o.worst != 50*ms || o.crowded != 100*ms || o.alone != 100_142_857*time.Nanosecond || o.longest != 200*ms {
		t.Errorf("worst %v, crowded %v, alone %v, longest %v", o.worst, o.crowded, o.alone, o.longest)
	}
	if o.steps != 740 || o.steal != 0.09 {
		t.Errorf("%d steps, %v s of steal", o.steps, o.steal)
	}
}

// awaitSaid waits until each VM has said a word this number of times.
func (l *labHost) awaitSaid(t *testing.T, names []string, word string, times int) {
	t.Helper()
	for _, name := range names {
		for end := time.Now().Add(10 * time.Minute); len(l.said(t, name, word)) < times; {
			if time.Now().After(end) {
				t.Fatalf("VM %s does not say %s", name, word)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// localShare is the share of misses on the CPU's own node, of the CPUs for hand-over.
func localShare(m labcounter.Misses) float64 {
	own, sum := 0.0, 0.0
	for cpu, row := range m.CPUs {
		if strings.Contains(","+sharedHost+",", fmt.Sprintf(",%d,", cpu)) {
			continue
		}
		for node, n := range row {
			sum += float64(n)
			if node == cpu/4 {
				own += float64(n)
			}
		}
	}
	return own / sum
}

// prepare makes the VMs share in this way.
func (l *labHost) prepare(t *testing.T, way string, names []string) {
	t.Helper()
	if way == "hand-over" {
		l.startHandOver(t, names, sharedHost)
		return
	}
	l.endHandOver(t, names)
	mirrors := map[string][]topology.CPUID{}
	for _, name := range names {
		mirrors[name] = mirrorOf(t, l, name)
	}
	parts := thirds(names, mirrors)
	for _, name := range names {
		var parked, script []string
		var own []string
		for v, cpu := range mirrors[name] {
			if parts[cpu] != name {
				parked = append(parked, strconv.Itoa(v))
			} else {
				own = append(own, strconv.Itoa(int(cpu)))
			}
		}
		for v, cpu := range mirrors[name] {
			to := sharedCPUs
			if way == "thirds" {
				if to = strings.Join(own, ","); parts[cpu] == name {
					to = strconv.Itoa(int(cpu))
				}
			}
			script = append(script, fmt.Sprintf("virsh -q vcpupin %s %d %s --live", name, v, to))
		}
		l.sh(t, strings.Join(script, " && "))
		if way != "thirds" {
			parked = []string{"none"}
		}
		l.types(t, name, "park "+strings.Join(parked, ","))
	}
}

// startHandOver lets the daemon and the agents hand CPUs over, if they do not already. The host's own programs run on
// the CPUs aside.
func (l *labHost) startHandOver(t *testing.T, names []string, aside string) {
	t.Helper()
	if l.daemonRuns(t) {
		return
	}
	for _, name := range names {
		l.types(t, name, "park none")
		l.types(t, name, "agent on")
	}
	l.startDaemon(t)
	l.hostAside(t, aside)
	for _, name := range names {
		l.awaitRecord(t, 2*time.Minute, `"`+name+`":\{"means":"partition"(,"taken"|\})`)
	}
}

// endHandOver ends the daemon and the agents: from then on the test gives the VMs their CPUs.
func (l *labHost) endHandOver(t *testing.T, names []string) {
	t.Helper()
	if l.daemonRuns(t) {
		l.stopDaemon(t, "TERM")
	}
	for _, name := range names {
		l.types(t, name, "agent off")
	}
}

func (l *labHost) daemonRuns(t *testing.T) bool {
	t.Helper()
	return l.run(t, "sh", "-c", "kill -0 $(cat /run/daemon.pid)").status == 0
}

func mirrorOf(t *testing.T, l *labHost, name string) []topology.CPUID {
	t.Helper()
	p := l.show(t, name).Placement
	if p == nil || p.Handoff == nil || p.VCPUs[0].ID != guest.VCPUID(0) {
		t.Fatalf("VM %s has no placement for hand-over", name)
	}
	return p.Mirror()
}

// thirds divides the CPUs: each VM has its anchor, and then in turn the next CPU in the order of its vCPUs.
func thirds(names []string, mirrors map[string][]topology.CPUID) map[topology.CPUID]string {
	parts := map[topology.CPUID]string{}
	for _, name := range names {
		parts[mirrors[name][0]] = name
	}
	for len(parts) < len(mirrors[names[0]]) {
		for _, name := range names {
			for _, cpu := range mirrors[name] {
				if _, taken := parts[cpu]; !taken {
					parts[cpu] = name
					break
				}
			}
		}
	}
	return parts
}

// tableOf writes outcomes for docs/benchmarks.
func tableOf(all []outcome) string {
	columns := []string{"way", "steps", "worst second's mean time between barriers: by turns, crowded",
		"of a step with one thread", "longest", "steal in the VMs", "waits for other VMs, at most", "vCPUs ran",
		"steps for each second that they ran", "local", "hand-overs, ms", "until the first instruction, ms", "others", "lab"}
	var b strings.Builder
	b.WriteString("| " + strings.Join(columns, " | ") + " |\n" + strings.Repeat("|---", len(columns)) + "|\n")
	for _, o := range all {
		ran := sumOf(o.seen.Ran)
		cells := []string{o.way, strconv.Itoa(o.steps),
			fmt.Sprintf("%d, %d ms", o.worst.Milliseconds(), o.crowded.Milliseconds()),
			fmt.Sprintf("%d ms", o.alone.Milliseconds()), fmt.Sprintf("%d ms", o.longest.Milliseconds()),
			fmt.Sprintf("%.1f s", o.steal), fmt.Sprintf("%.2f s", sumOf(o.seen.Stolen)), fmt.Sprintf("%.1f s", ran),
			fmt.Sprintf("%.1f", float64(o.steps)/ran), fmt.Sprintf("%.0f %%", 100*o.local),
			fmt.Sprintf("%d: %s", len(o.seen.HandOvers), quantiles(o.seen.times())),
			fmt.Sprintf("%d: %s", len(o.rises), quantiles(o.rises)), fmt.Sprintf("%.0f %%", 100*o.others),
			fmt.Sprintf("%.0f %%", 100*o.used)}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}
