package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/rotate"
)

// The bound of docs/daemon.md. The kernel moves one huge page at once, or up to
// 512 small ones (NR_MAX_BATCHED_MIGRATION of mm/migrate.c since Linux 6.3; one
// before): a thread that touches one of them waits until its batch is done.
const (
	batch = 2 * topology.MiB
	// mostTouch is how many batches longer a touch may wait than on a host that is
	// busy elsewhere: the copying thread may lose its CPU during a batch.
	mostTouch = 2
	// mostAnswer is how many batches later than on such a host the guest may answer:
	// scheduling included, but a quarter of the smallest slice.
	mostAnswer = 8
	// slice is the smallest amount that the mover copies without a check of the
	// guest.
	slice = 64 * topology.MiB
)

// responses holds the results of a guest's probe, second by second.
type responses []lab.Probe

// worst is the worst second, of each figure.
func (r responses) worst() (w lab.Probe) {
	worse := func(w *lab.Delays, d lab.Delays) {
		w.P50, w.P99, w.P999, w.Max = max(w.P50, d.P50), max(w.P99, d.P99), max(w.P999, d.P999), max(w.Max, d.Max)
	}
	for _, p := range r {
		w.Touches += p.Touches
		worse(&w.Touch, p.Touch)
		worse(&w.Answer, p.Answer)
	}
	return w
}

// exceeds names the figures in which the worst second exceeds the bound; "" if
// none does. elsewhere is the guest's result while the host was busy elsewhere,
// perBatch how long a batch takes.
func (r responses) exceeds(elsewhere responses, perBatch time.Duration) string {
	var beyond []string
	w := r.worst()
	if most := elsewhere.worst().Touch.P999 + mostTouch*perBatch; w.Touch.P999 > most {
		beyond = append(beyond,
			fmt.Sprintf("of 1000 touches one takes more than %v, the bound is %v", w.Touch.P999, most))
	}
	if most := elsewhere.worst().Answer.P99 + mostAnswer*perBatch; w.Answer.P99 > most {
		beyond = append(beyond, fmt.Sprintf("of 100 answers one is later than %v, the bound is %v", w.Answer.P99, most))
	}
	return strings.Join(beyond, "; ")
}

// during lets a guest probe itself while an action runs.
func (l *labHost) during(t *testing.T, name string, do func()) responses {
	t.Helper()
	probed := func() responses {
		all, err := l.Probed(name)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := len(probed())
	if err := l.StartProbe(l.ctx, name, time.Second, 600); err != nil {
		t.Fatal(err)
	}
	do()
	said := probed()[before:]
	if err := l.StopProbe(l.ctx, name); err != nil {
		t.Fatal(err)
	}
	if len(said) < 2 {
		t.Fatalf("guest %s probed itself for %d s: this run tested nothing", name, len(said))
	}
	return said
}

// awaitProbes returns when a guest has probed itself for some more seconds: its
// first probe may come late.
func (l *labHost) awaitProbes(t *testing.T, name string, seconds int) {
	t.Helper()
	began, end := -1, time.Now().Add(30*time.Second)
	for {
		all, err := l.Probed(name)
		if err != nil {
			t.Fatal(err)
		}
		if began < 0 {
			began = len(all)
		}
		if len(all) >= began+seconds {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("guest %s probed itself for %d s within 30 s", name, len(all)-began)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// shuttle moves a guest back and forth between nodes 1 and 2.
type shuttle struct {
	*labHost
	name   string
	memory topology.Bytes
	at     int
	had    *guest.Placement
}

// move makes one move while the guest probes itself. It returns also how long
// a batch took.
func (s *shuttle) move(t *testing.T, args ...string) (responses, time.Duration) {
	t.Helper()
	to := s.placement(t, s.name, fmt.Sprint(3-s.at))
	s.write(t, plan.MoveGuest, moveOf(to, topology.NodeID(s.at), s.had, s.memory))
	var moved []move.Result
	said := s.during(t, s.name, func() {
		r := s.numavisor(t, append([]string{"apply", "/run/plan.json", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(r.stdout), &moved); err != nil || r.status != 0 {
			t.Fatalf("status %d, %v: %s", r.status, err, r.stderr)
		}
	})
	s.at, s.had = 3-s.at, &to
	var bytes topology.Bytes
	var took time.Duration
	for _, o := range moved[0].Guests[0].Outcomes {
		if o.Step.Kind == plan.MoveRange {
			bytes, took = bytes+o.Moved.Moved, took+o.Took
		}
	}
	if bytes < s.memory*9/10 { // its firmware and devices have some
		t.Fatalf("copied %v of %v", bytes, s.memory)
	}
	return said, time.Duration(float64(took) * float64(batch) / float64(bytes))
}

// A guest answers within the bound while it is moved at a pace. A guest that
// was stopped for the length of a slice would exceed the bound.
func TestLabPacedMoveLeavesTheGuestResponsive(t *testing.T) {
	rotate.Test(t, 0)
	p := startProbed(t, "always")
	perBatch := p.staysWithinBound(t, 0)
	p.staysWithinBound(t, perBatch, "--pace", "32M")
	said, took := p.move(t, "--full-speed")
	p.note("full speed", said)
	stop := time.Duration(slice/batch) * took
	stopped := p.during(t, p.name, func() {
		p.sh(
			t,
			fmt.Sprintf(
				"pid=$(cat /run/libvirt/qemu/%s.pid); for i in 1 2; do kill -STOP $pid; sleep %.2f; kill -CONT "+
					"$pid; sleep 0.5; done; sleep 1",
				p.name,
				stop.Seconds(),
			),
		)
	})
	p.note(fmt.Sprintf("stopped twice for %.2f s", stop.Seconds()), stopped)
	if stopped.exceeds(p.quietest, perBatch) == "" {
		t.Errorf(
			"a guest that was stopped for %v, as long as a slice of %v takes, is within the bound: the probe does "+
				"not detect the stop",
			stop,
			slice,
		)
	}
}

// The same for a guest whose pages are all small.
func TestLabPacedMoveOfSmallPagesLeavesTheGuestResponsive(t *testing.T) {
	rotate.Test(t, 1)
	startProbed(t, "never").staysWithinBound(t, 0)
}

// probed is a guest that is moved and probes itself meanwhile.
type probed struct {
	*shuttle
	elsewhere responses // while the host is busy elsewhere
	// quietest is the part of elsewhere that the real machine disturbed least: it may stop all of the lab for as long
	// as the probe must notice that the guest is stopped.
	quietest responses
	table    strings.Builder
}

// startProbed starts a guest with transparent huge pages (always, never), and
// has it probe itself while nothing else is done.
func startProbed(t *testing.T, huge string) *probed {
	t.Helper()
	l := bootWith(t, "square4", lab.Options{Saved: true})
	name, setting := "probed-"+huge, "/sys/kernel/mm/transparent_hugepage/enabled"
	had := strings.Trim(strings.TrimSpace(l.sh(t, `grep -o '\[.*\]' `+setting)), "[]")
	l.sh(t, "echo "+huge+" > "+setting)
	t.Cleanup(func() { l.sh(t, "echo "+had+" > "+setting) })
	l.startWorker(t, worker{name: name, memoryMiB: 192, vcpus: 1, memory: 1, cpus: "2-3", quota: 100})
	p := &probed{shuttle: &shuttle{labHost: l, name: name, memory: 192 * topology.MiB, at: 1}}
	if is := p.huge(t); (is > p.memory*9/10) != (huge == "always") {
		t.Fatalf("transparent huge pages %s: %v of the guest's %v are", huge, is, p.memory)
	}
	t.Cleanup(func() { t.Logf("transparent huge pages %s; worst second of each:%s", huge, p.table.String()) })
	p.note("idle", l.during(t, name, func() { l.awaitProbes(t, name, 4) }))
	return p
}

// busyElsewhere has the guest probe itself while a program works on another
// node: a few real CPUs give all of the lab's, and the mover takes from the guest
// what any program does. What else the real machine does changes: all of it counts.
func (p *probed) busyElsewhere(t *testing.T) {
	t.Helper()
	said := p.during(t, p.name, func() { p.sh(t, "timeout 6 taskset -c 6 sh -c 'while :; do :; done'; true") })
	p.note("busy elsewhere", said)
	p.elsewhere = append(p.elsewhere, said...)
	if p.quietest == nil || said.worst().Answer.Max < p.quietest.worst().Answer.Max {
		p.quietest = said
	}
}

// huge is how much of the guest's memory is in transparent huge pages.
func (p *probed) huge(t *testing.T) topology.Bytes {
	t.Helper()
	out := p.sh(t,
		fmt.Sprintf("awk '/^AnonHugePages/ {print $2}' /proc/$(cat /run/libvirt/qemu/%s.pid)/smaps_rollup", p.name))
	var kib topology.Bytes
	if _, err := fmt.Sscan(out, &kib); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return kib * topology.KiB
}

func (p *probed) note(how string, r responses) {
	w := r.worst()
	fmt.Fprintf(&p.table, "\n%-24s %5d touches: p50 %v p99 %v p99.9 %v max %v; answers: p50 %v p99 %v p99.9 %v max %v",
		how, w.Touches, w.Touch.P50, w.Touch.P99, w.Touch.P999, w.Touch.Max, w.Answer.P50, w.Answer.P99, w.Answer.P999,
		w.Answer.Max)
}

// staysWithinBound moves the guest up to five times, and requires that it stays
// within the bound at least once: the real machine may be busy with something else.
// perBatch is how long a batch takes; 0: staysWithinBound takes the time from the
// move itself, which must then not pause within a slice. It returns that time.
func (p *probed) staysWithinBound(t *testing.T, perBatch time.Duration, args ...string) time.Duration {
	t.Helper()
	beyond, bound := "", perBatch
	const tries = 5
	for range tries {
		p.busyElsewhere(t)
		said, took := p.move(t, args...)
		if bound = perBatch; bound == 0 {
			bound = took
		}
		p.note(strings.Join(append([]string{"paced"}, args...), " "), said)
		if beyond = said.exceeds(p.elsewhere, bound); beyond == "" {
			fmt.Fprintf(&p.table, "; %v take %v", batch, bound)
			return bound
		}
	}
	t.Errorf("paced %v, %d times: %s", args, tries, beyond)
	return bound
}

// A bound must be one that can be exceeded: by each figure alone, within a
// single second, and not only by a busy host.
func TestBoundOfAProbe(t *testing.T) {
	const perBatch = 20 * time.Millisecond
	second := func(touch, answer time.Duration) lab.Probe {
		return lab.Probe{
			Touches: 1000,
			Touch:   lab.Delays{P999: touch, Max: time.Hour},
			Answer:  lab.Delays{P99: answer, Max: time.Hour},
		}
	}
	calm := second(0, 10*time.Millisecond)
	for _, c := range []struct {
		name      string
		said      lab.Probe
		elsewhere lab.Probe
		beyond    bool
	}{
		{"undisturbed", calm, calm, false},
		{"waits for its batch", second(2*perBatch, 0), calm, false},
		{"waits for more than its batch", second(2*perBatch+1, 0), calm, true},
		{"as late as allowed", second(0, 170*time.Millisecond), calm, false},
		{"later", second(0, 170*time.Millisecond+1), calm, true},
		{"no later than elsewhere", second(0, 300*time.Millisecond), second(0, 140*time.Millisecond), false},
		{"stopped for a slice", second(0, 32*perBatch), second(0, 300*time.Millisecond), true},
	} {
		got := responses{calm, c.said, calm}.exceeds(responses{calm, c.elsewhere}, perBatch)
		if (got != "") != c.beyond {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
