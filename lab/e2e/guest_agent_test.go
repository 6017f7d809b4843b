package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/rotate"
)

// bootGuest boots a lab whose kernel stands for that of a guest, with the agent.
func bootGuest(t *testing.T, shape string) *labHost {
	t.Helper()
	agent, err := filepath.Abs("../../bin/numavisor-guest")
	if err != nil {
		t.Fatal(err)
	}
	grant := filepath.Join(t.TempDir(), "grant")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", grant, "../grant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bootWith(t, shape, lab.Options{Saved: true,
		Files: map[string]string{"numavisor-guest": agent, "grant": grant}})
}

// answer is a line of lab/grant.
type answer struct {
	guest.Report

	UsedList string  `json:"used_list"`
	Millis   float64 `json:"ms"`
	Ran      float64 `json:"ran"`
	Least    float64 `json:"least"`
}

// grants starts the agent, sends it grants, waits until it has reported a demand in
// thousandths of a vCPU, and ends it by SIGKILL.
func (l *labHost) grants(t *testing.T, demand int, lists ...string) []answer {
	t.Helper()
	out := l.sh(t, fmt.Sprintf(`grant /run/g.sock %d %s & grant=$!
numavisor-guest --channel /run/g.sock >/run/agent.log 2>&1 & agent=$!
wait $grant; rc=$?; grep VmHWM /proc/$agent/status >/run/agent.rss; kill -KILL $agent; wait $agent 2>/dev/null
[ $rc = 0 ] || cat /run/agent.log; exit $rc`, demand, strings.Join(lists, " ")))
	var answers []answer
	for line := range strings.Lines(out) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		t.Logf("epoch %d: used %s by %s, acknowledged after %.1f ms, then ran %.3f, others %.3f; running %d waiting %d stalled %d",
			a.Epoch, a.UsedList, a.Means, a.Millis, a.Ran, a.Least, a.Running, a.Waiting, a.Stalled)
		answers = append(answers, a)
	}
	return answers
}

// The agent frees vCPUs of a busy kernel: nothing runs on them when it says so. It
// continues after its own kill with what the kernel has, and finds other means where
// a partition is not possible.
func TestLabGuestAgent(t *testing.T) {
	l := bootGuest(t, "square4")
	l.sh(t, "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) >/dev/null 2>&1 & done")
	check := func(answers []answer, means guest.Means, want ...string) {
		t.Helper()
		if len(answers) != len(want) {
			t.Fatalf("%d answers to %d grants", len(answers), len(want))
		}
		for i, a := range answers {
			if a.UsedList != want[i] || a.Means != means {
				t.Errorf("grant %d: used %s by %q, want %s by %q", i, a.UsedList, a.Means, want[i], means)
			}
			if a.Ran > 0.1 {
				t.Errorf("grant %d: a released vCPU ran tasks for %.0f %% of the time", i, 100*a.Ran)
			}
			if a.Least < 0.2 {
				t.Errorf("grant %d: a vCPU of %s ran tasks for only %.0f %% of the time, and there is work for all", i,
					a.UsedList, 100*a.Least)
			}
		}
	}
	lists := []string{"0-3", "0-2", "0-3,6", "0,6", "0-5"}
	first := l.grants(t, 8000, lists...)
	check(first, guest.Partition, lists...)
	if kib := residentKiB(t, l); kib >= 10<<10 {
		t.Errorf("the agent's resident memory is %d KiB; limit 10 MiB", kib)
	}
	again := l.grants(t, 0, "0-1")
	check(again, guest.Partition, "0-1")
	if before := first[len(first)-1].Epoch; again[0].Epoch <= before {
		t.Errorf("the agent forgot epoch %d when it was killed: %d", before, again[0].Epoch)
	}
	// A group that wants the same CPUs for itself makes partitions invalid.
	l.sh(t, "for g in /sys/fs/cgroup/numavisor-parked-*; do echo member > $g/cpuset.cpus.partition; done; mkdir /sys/fs/cgroup/other; "+
		"echo 0-7 > /sys/fs/cgroup/other/cpuset.cpus")
	lists = []string{"0-3", "0-1,5", "0-7"}
	check(l.grants(t, 0, lists...), guest.Offline, lists...)
}

// apartShape is a VM whose vCPUs have no cache in common: the kernel wakes a thread near the vCPU on which it was, and
// only its balancing brings threads to another one.
const apartShape = `name: apart
nodes: [{cpus: 1, memory: 700M}, {cpus: 1, memory: 700M}, {cpus: 1, memory: 700M}, {cpus: 1, memory: 700M}]
`

// A vCPU that was parked alone gets threads when it comes back, also those of a program whose threads sleep at barriers
// most of the time: the kernel sees that it is idle.
func TestLabGuestAgentBarriers(t *testing.T) {
	rotate.Test(t, 2)
	shape := filepath.Join(t.TempDir(), "apart.yaml")
	if err := os.WriteFile(shape, []byte(apartShape), 0o600); err != nil {
		t.Fatal(err)
	}
	l := bootGuest(t, shape)
	agent, err := filepath.Abs("../../bin/numavisor-guest")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AddMirror(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	l.sh(t, "cp /lab/files/mirror /run/mirror; (echo agent off; echo run 500 3600 0 4; sleep 3600) | /run/mirror >/run/mirror.log 2>&1 & "+
		"for i in $(seq 100); do grep -q RUN /run/mirror.log && break; sleep 0.1; done")
	for i, a := range l.grants(t, 0, "0-2", "0-3", "0,2-3", "0-3", "0", "0-1", "0-3") {
		if a.Least < 0.05 {
			t.Errorf("grant %d of vCPUs %s: one of them ran threads for %.1f %% of the time, and there is one for each", i,
				a.UsedList, 100*a.Least)
		}
		if a.Ran > 0.1 {
			t.Errorf("grant %d: a released vCPU ran tasks for %.0f %% of the time", i, 100*a.Ran)
		}
	}
}

// residentKiB is the greatest resident memory of the last agent.
func residentKiB(t *testing.T, l *labHost) int {
	t.Helper()
	var kib int
	_, err := fmt.Sscanf(l.sh(t, "cat /run/agent.rss"), "VmHWM: %d kB", &kib)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the agent's resident memory: at most %d KiB", kib)
	return kib
}

// What parking a vCPU costs by each means that the agent has, in the same run on the
// same kernel. 'make bench-handoff' prints the figures.
func TestLabHandOffCost(t *testing.T) {
	rounds := os.Getenv("NUMAVISOR_HANDOFF_ROUNDS")
	if rounds == "" {
		t.Skip("a measurement: 'make bench-handoff' runs it")
	}
	l := bootGuest(t, slowed(t, "square4", 8))
	t.Log("\n" + l.sh(t, "numavisor-guest --bench "+rounds))
}

// slowed returns a file with a built-in shape whose clock is slower by a factor. What the kernel computes then takes
// less time against what it waits for by the clock, as on hardware.
func slowed(t *testing.T, shape string, factor int) string {
	t.Helper()
	s, err := lab.FindShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	s.Name, s.Slowdown = s.Name+"-slow", factor
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "shape.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
