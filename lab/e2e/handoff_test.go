package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// handoffPolicy names one CPU of each node; the others are the host's.
const (
	handoffPolicy = "handoff:\n  cpus: 1,3,5,7\n"
	hostCPUs      = "0,2,4,6"
)

const grantRecord = "/run/numavisor/handoff.json"

// bootHandoff boots a lab with the parts of mirrored VMs, and starts the daemon with a policy. The host's own programs
// run on the CPUs aside.
func bootHandoff(t *testing.T, shape, policy, aside string) *labHost {
	t.Helper()
	agent, err := filepath.Abs("../../bin/numavisor-guest")
	if err != nil {
		t.Fatal(err)
	}
	witness := filepath.Join(t.TempDir(), "witness")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", witness, "../witness")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l := bootWith(t, shape, lab.Options{Saved: true,
		Files: map[string]string{"witness": witness}})
	if err := l.AddMirror(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	// Without polling: an emulated CPU that waits for work must not take the real processors of those that work.
	l.sh(t, "echo 0 > /sys/module/kvm/parameters/halt_poll_ns; echo 0 > /proc/sys/kernel/numa_balancing; "+
		"cat > /run/policy.yaml <<'X'\n"+policy+"\nX")
	l.startDaemon(t)
	l.hostAside(t, aside)
	t.Cleanup(func() {
		if t.Failed() {
			r := l.run(t, "sh", "-c", "tail -n 60 /run/daemon.log; cat "+grantRecord+"; tail -n 40 /lab/files/console-*")
			t.Log(r.stdout, r.stderr)
		}
	})
	return l
}

// hostAside restricts the host's own programs to the host's CPUs, as an operator does with the CPUAffinity of
// systemd: what runs on a CPU for hand-over steals time from a VM.
func (l *labHost) hostAside(t *testing.T, cpus string) {
	t.Helper()
	l.sh(t, "for p in $(pgrep -x libvirtd) $(cat /run/daemon.pid) 1; do taskset -acp "+cpus+" $p >/dev/null; done")
}

// createMirrored creates mirrored VMs.
func (l *labHost) createMirrored(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		l.must(t, "create", "--policy", "/run/policy.yaml", "--name", name, "--sharing", "handoff", "--memory", "160M",
			"--kernel", lab.GuestKernel, "--initrd", lab.MirrorInitrd, "--append", lab.GuestCommandLine)
	}
}

// awaitGuests waits until VMs have booted, and their agents have reported.
func (l *labHost) awaitGuests(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := l.AwaitGuest(l.ctx, name); err != nil {
			t.Fatal(err)
		}
		l.awaitRecord(t, 2*time.Minute, fmt.Sprintf(`"%s":{[^}]*"means":"partition"`, name))
	}
}

// awaitRecord waits inside the lab until the record of grants matches an extended regular expression.
func (l *labHost) awaitRecord(t *testing.T, within time.Duration, pattern string) {
	t.Helper()
	script := fmt.Sprintf(`for i in $(seq %d); do grep -qE "$1" %s && exit; sleep 0.1; done; exit 1`,
		int(within.Seconds()*10), grantRecord)
	if r := l.run(t, "bash", "-c", script, "await", pattern); r.status != 0 {
		t.Fatalf("after %v the record of grants does not match %s:\n%s", within, pattern, l.sh(t, "cat "+grantRecord))
	}
}

// awaitCPUs waits until a VM has this many CPUs, and none of them leaves.
func (l *labHost) awaitCPUs(t *testing.T, within time.Duration, name string, cpus int) {
	t.Helper()
	script := fmt.Sprintf(`for i in $(seq %d); do
  all=$(grep -oE '\{"cpu":[^}]*"guest":"'$1'"[^}]*\}' %s)
  [ "$(echo "$all" | grep -vc leaving)" = $2 ] && exit
  sleep 0.1
done; exit 1`, int(within.Seconds()*10), grantRecord)
	if r := l.run(t, "bash", "-c", script, "await", name, strconv.Itoa(cpus)); r.status != 0 {
		t.Fatalf("after %v VM %s does not have %d CPUs:\n%s", within, name, cpus, l.sh(t, "cat "+grantRecord))
	}
}

// witness starts a witness of the VMs, and returns what ends it and returns what it has seen.
func (l *labHost) witness(t *testing.T, every time.Duration, minimums ...string) (end func() testimony) {
	t.Helper()
	l.sh(t, "rm -f /run/witness.out; setsid witness "+every.String()+" "+grantRecord+" "+strings.Join(minimums, " ")+
		" >/run/witness.out 2>/run/witness.err & echo $! >/run/witness.pid")
	return func() testimony {
		t.Helper()
		text := l.sh(t, "kill $(cat /run/witness.pid); for i in $(seq 100); do [ -s /run/witness.out ] && break; sleep 0.1; "+
			"done; cat /run/witness.err /run/witness.out")
		var seen testimony
		if err := json.Unmarshal([]byte(text), &seen); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return seen
	}
}

// testimony is what lab/witness prints.
type testimony struct {
	Looks, Checked, Judged int
	Violations             []string
	HandOvers              []struct {
		CPU      int
		From, To string
		MS       float64
	} `json:"hand_overs"`
	Below  map[string]float64 `json:"below_ms"`
	Ran    map[string]float64 `json:"ran_s"`
	Waited map[string]float64 `json:"waited_s"`
	Stolen map[string]float64 `json:"stolen_s"`
}

// sumOf sums a figure of all VMs.
func sumOf(byVM map[string]float64) (sum float64) {
	for _, s := range byVM {
		sum += s
	}
	return sum
}

// times returns how long hand-overs took, in ms.
func (s *testimony) times() []float64 {
	var all []float64
	for _, h := range s.HandOvers {
		all = append(all, h.MS)
	}
	return all
}

// quantiles writes the median, the 99th percentile and the greatest of some figures.
func quantiles(figures []float64) string {
	if len(figures) == 0 {
		return "none"
	}
	s := slices.Sorted(slices.Values(figures))
	return fmt.Sprintf("median %.0f, p99 %.0f, most %.0f", s[len(s)/2], s[len(s)*99/100], s[len(s)-1])
}

// said returns the lines of a VM's console whose first field is word, as fields.
func (l *labHost) said(t *testing.T, name, word string) [][]string {
	t.Helper()
	text, err := l.Said(name)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == word && strings.HasSuffix(line, "\n") {
			all = append(all, f)
		}
	}
	return all
}

func (l *labHost) types(t *testing.T, name, line string) {
	t.Helper()
	if err := l.Type(l.ctx, name, line); err != nil {
		t.Fatal(err)
	}
}

// work is four threads for an hour, see guest/mirror.c.
const work = "500 3600 0 4"

// load lets one of two VMs work with more threads than it has CPUs, and the other one not.
func (l *labHost) load(t *testing.T, busy, idle string) {
	t.Helper()
	l.types(t, idle, "stop")
	l.types(t, busy, "run "+work)
}

// Load rises in one mirrored VM: its CPUs come from the other one, and back. The host's kernel saw no VM run on a CPU
// of the other one, whatever was killed meanwhile.
func TestLabHandoff(t *testing.T) {
	rotate.Test(t, 3)
	labtest.NeedsLab(t)
	l := bootHandoff(t, "square4", handoffPolicy, hostCPUs) // alone: it measures steal
	l.createMirrored(t, "m1", "m2")
	l.awaitGuests(t, "m1", "m2")
	end := l.witness(t, 20*time.Millisecond, "m1=1", "m2=1")
	t.Run("load", func(t *testing.T) { l.handsOver(t) })
	t.Run("kills", func(t *testing.T) { l.handsOverWhenKilled(t) })
	t.Run("minimum", func(t *testing.T) { l.handsOverMinimum(t) })
	seen := end()
	t.Logf("%d looks, %d run times judged of %d; below the minimum for at most %v ms; ran %v s, waited %v s", seen.Looks,
		seen.Judged, seen.Checked, seen.Below, seen.Ran, seen.Waited)
	t.Logf("%d hand-overs, in ms: %s", len(seen.HandOvers), quantiles(seen.times()))
	for _, v := range seen.Violations {
		t.Error(v)
	}
	if seen.Judged < 100 || len(seen.HandOvers) < 4 {
		t.Errorf("the witness judged only %d run times, and saw only %d hand-overs", seen.Judged, len(seen.HandOvers))
	}
}

// mostSteal is the share of its CPUs' time that a VM may lose: vCPUs without a grant have their kernel's timers, and
// run on their own VM's CPUs. Two VMs that share one of three CPUs each lose a sixth. In QEMU 11.1 the VM lost
// 0.01 to 0.11, and the witness saw no vCPU on a CPU of the other VM.
const mostSteal = 0.15

func (l *labHost) handsOver(t *testing.T) {
	t.Helper()
	names := []string{"m1", "m2"}
	for turn := range 3 {
		busy, idle := names[turn%2], names[1-turn%2]
		before, ready := len(l.said(t, busy, "RUN")), len(l.said(t, busy, "READY"))
		l.types(t, idle, "stop")
		l.types(t, busy, "ready "+work)
		l.awaitSaid(t, []string{busy}, "READY", ready+1)
		l.types(t, busy, "go")
		l.awaitCPUs(t, 2*time.Minute, busy, 3)
		l.awaitCPUs(t, time.Minute, idle, 1)
		if text := l.must(t, "show", busy).stdout; !strings.Contains(text, "hand-over: has CPUs ") ||
			!strings.Contains(text, "its agent frees vCPUs by means partition") {
			t.Errorf("show says nothing of the hand-over:\n%s", text)
		}
		first, last := l.twoReports(t, busy, before)
		steal, seconds := last.steal-first.steal, (last.at - first.at).Seconds()
		t.Logf("turn %d: %s lost %.3f s in %.1f s on 3 CPUs; %v; us until a vCPU was used first: %v", turn, busy, steal,
			seconds, l.said(t, busy, "MORE"), l.said(t, busy, "RISE"))
		if steal > mostSteal*3*seconds {
			t.Errorf("turn %d: steal of %.2f s in %.1f s", turn, steal, seconds)
		}
	}
	for _, name := range names {
		l.parkedVCPUsSleep(t, name)
	}
}

// report is a line RUN of guest/mirror.c.
type report struct {
	at      time.Duration
	steps   int
	rounds  int
	longest time.Duration
	steal   float64 // seconds of all vCPUs
}

func parseReport(t *testing.T, f []string) report {
	t.Helper()
	if len(f) != 6 {
		t.Fatalf("a report reads %q", f)
	}
	var n [5]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(f[i+1]); err != nil {
			t.Fatalf("a report reads %q: %v", f, err)
		}
	}
	return report{time.Duration(n[0]) * time.Millisecond, n[1], n[2], time.Duration(n[3]) * time.Microsecond,
		float64(n[4]) / 100}
}

// twoReports returns the next report of a VM, and one some seconds after it.
func (l *labHost) twoReports(t *testing.T, name string, skip int) (first, last report) {
	t.Helper()
	skip = max(skip, len(l.said(t, name, "RUN")))
	l.awaitSaid(t, []string{name}, "RUN", skip+5)
	all := l.said(t, name, "RUN")
	return parseReport(t, all[skip]), parseReport(t, all[skip+4])
}

// handsOverWhenKilled kills the daemon and the agents in turn while a CPU changes hands.
// NUMAVISOR_HANDOFF_KILLS is the number of kills.
func (l *labHost) handsOverWhenKilled(t *testing.T) {
	t.Helper()
	kills := 4
	if text := os.Getenv("NUMAVISOR_HANDOFF_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"m1", "m2"}
	for kill := range kills {
		// handsOver ends with m1 busy.
		busy, idle := names[1-kill%2], names[kill%2]
		what := []string{"daemon", "agent of " + idle, "agent of " + busy}[kill%3]
		l.load(t, busy, idle)
		leaving := l.sh(t, `for i in $(seq 200); do
  grep -q leaving `+grantRecord+` && echo in a hand-over && break
  sleep 0.02
done`)
		if victim, ok := strings.CutPrefix(what, "agent of "); ok {
			l.types(t, victim, "agent kill")
		} else {
			l.sh(t, `kill -9 $(cat /run/daemon.pid); while kill -0 $(cat /run/daemon.pid) 2>/dev/null; do sleep 0.05; done`)
			l.startDaemon(t)
			l.hostAside(t, hostCPUs)
		}
		begin := time.Now()
		l.awaitCPUs(t, 3*time.Minute, busy, 3)
		t.Logf("kill %d: %s, %s: %s has 3 CPUs %v later", kill, what, strings.TrimSpace(leaving), busy,
			time.Since(begin).Round(time.Millisecond))
	}
}

// handsOverMinimum creates a VM whose first CPU serves another one, which does not answer.
func (l *labHost) handsOverMinimum(t *testing.T) {
	t.Helper()
	holder := "m1"
	l.load(t, holder, "m2")
	for attempt := 1; ; attempt++ {
		l.awaitCPUs(t, 2*time.Minute, holder, 3)
		l.types(t, holder, "agent stop")
		l.awaitRecord(t, time.Minute, `"`+holder+`":{[^}]*"silent":true`)
		granted := l.sh(t, `grep -oE '"cpu":[0-9]+,"guest":"`+holder+`"' `+grantRecord+` | wc -l`)
		if strings.TrimSpace(granted) == "3" {
			break // else the other VM took one before the agent stopped
		}
		if attempt == 3 {
			t.Fatalf("VM %s loses a CPU each time before its agent stops:\n%s", holder, l.sh(t, "cat "+grantRecord))
		}
		l.types(t, holder, "agent cont")
	}
	l.createMirrored(t, "m3")
	l.awaitCPUs(t, time.Minute, "m3", 1)
	l.awaitCPUs(t, time.Minute, holder, 2)
	l.types(t, holder, "agent cont")
}
