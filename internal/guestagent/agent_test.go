package guestagent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/api/guest"
)

func start(t *testing.T, f *fake) *agent {
	t.Helper()
	a, err := newAgent(f, f.wait, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *agent) mustReport(t interface{ Fatal(args ...any) }) guest.Report {
	r, err := a.report(-1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Encode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

func grantOf(epoch uint64, ids ...int) guest.Grant {
	return guest.Grant{V: guest.Version, Epoch: epoch, VCPUs: guest.Of(ids...)}
}

// Each kind of kernel gets the fastest means that works on it, and the result is the
// same.
func TestEachKernelHasAMeans(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fake)
		means  guest.Means
		used   guest.VCPUs
	}{
		"Linux 6.1, no groups": {func(*fake) {}, guest.Partition, guest.Of(0, 3)},
		"Linux 6.1, systemd": {func(f *fake) {
			f.groups, f.agent = map[string]string{"system.slice": "", "init.scope": ""}, "system.slice"
		}, guest.Partition, guest.Of(0, 3)},
		"partitions are invalid":  {func(f *fake) { f.partitions = false }, guest.Offline, guest.Of(0, 3)},
		"no cgroups":              {func(f *fake) { f.noGroups = true }, guest.Offline, guest.Of(0, 3)},
		"no cgroups, no hotplug":  {func(f *fake) { f.noGroups, f.hotplug = true, false }, guest.None, guest.Of(0, 1, 2, 3)},
		"cgroups are not mounted": {func(f *fake) { delete(f.files, "/sys/fs/cgroup/cgroup.controllers") }, guest.Offline, guest.Of(0, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(4)
			c.change(f)
			a := start(t, f)
			a.grant(grantOf(1, 0, 1, 3))
			a.grant(grantOf(2, 0, 3))
			r := a.mustReport(t)
			if r.Means != c.means || r.Used != c.used || r.Epoch != 2 {
				t.Errorf("%+v; want means %q and used %v", r, c.means, c.used)
			}
			if c.means == guest.Offline && f.files[expedite] != "0" {
				t.Error("RCU stays expedited")
			}
			a.grant(grantOf(3, 0, 1, 2, 3))
			if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2, 3) {
				t.Errorf("not all came back: %+v", r)
			}
		})
	}
}

// Without cgroups of programs, a change is one write for each vCPU that changes, once its cgroup exists.
func TestAChangeIsOneWrite(t *testing.T) {
	f := newFake(8)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 5))
	a.grant(grantOf(2, 0, 1, 2, 5))
	if got, want := f.changes(func() {
		a.grant(grantOf(3, 0, 1, 2))
		a.grant(grantOf(4, 0, 1, 2, 7))
	}), []string{systemRoot + partition + "5/cpuset.cpus=5", kindFile(5) + "=root", kindFile(7) + "=member"}; !slices.Equal(got, want) {
		t.Errorf("writes %q, want %q", got, want)
	}
}

// changes are the writes to cgroups that something makes.
func (f *fake) changes(do func()) (all []string) {
	f.writes = nil
	do()
	for _, w := range f.writes {
		if strings.Contains(w, "cpuset") {
			all = append(all, w)
		}
	}
	return all
}

// settles lets the agent measure, and make all partitions that are due.
func settles(t interface{ Fatal(...any) }, a *agent, now time.Time) {
	if err := a.measure(now); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		a.setApart(now)
	}
}

// A change is one write for each cgroup with programs. The partition follows once the vCPU has been parked for a while,
// and the thread of the agent is on the vCPU when it is made.
func TestAPartitionFollowsTheLimitOfPrograms(t *testing.T) {
	f := withPrograms(4)
	f.groups["user.slice"] = "1-3" // as the administrator has set it
	a := start(t, f)
	if err := a.measure(time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	limits := func(system, user string) []string {
		return []string{systemRoot + "/system.slice/cpuset.cpus=" + system, systemRoot + "/user.slice/cpuset.cpus=" + user}
	}
	if got, want := f.changes(func() { a.grant(grantOf(1, 0, 1, 3)) }), limits("0-1,3", "1,3"); !slices.Equal(sorted(got), want) {
		t.Errorf("a grant writes %q, want %q", got, want)
	}
	lifted := append(limits("\n", "1-3"), limits("0-3", "")[0]) // the kernel refuses an empty list where programs are
	if got := f.changes(func() { a.grant(grantOf(2, 0, 1, 2, 3)) }); !slices.Equal(sorted(got), sorted(lifted)) {
		t.Errorf("the return of a vCPU writes %q, want %q", got, lifted)
	}
	a.grant(grantOf(3, 0, 1, 3))
	for s := range 4 {
		settles(t, a, time.Unix(int64(s), 0))
		if apart := f.apart() == guest.Of(2); apart != (s >= 1) {
			t.Errorf("after %d s the vCPU is a partition: %t", s, apart)
		}
	}
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 3) || f.kicked != (guest.VCPUs{}) || f.at >= 0 || f.forPrograms() != r.Used {
		t.Errorf("used %v, %v by programs; parked vCPUs %v are woken; the agent is on vCPU %d", r.Used, f.forPrograms(),
			f.kicked, f.at)
	}
	a.grant(grantOf(4, 0, 1, 2, 3))
	if f.groups["system.slice"] != "0-3" || f.groups["user.slice"] != "1-3" || f.apart() != (guest.VCPUs{}) {
		t.Errorf("with all vCPUs the limits are %q, and %v are partitions", f.groups, f.apart())
	}
}

func sorted(all []string) []string {
	slices.Sort(all)
	return all
}

// A limit that the administrator sets while vCPUs are parked holds, for the next agent, too.
func TestLimitsOfOthersHold(t *testing.T) {
	f := withPrograms(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 2))
	a = start(t, f)
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2) {
		t.Errorf("the next agent finds %v in use", r.Used)
	}
	f.groups["user.slice"] = "2-3"
	a.irqs = time.Time{}
	for s := range 3 {
		settles(t, a, time.Unix(int64(100+s), 0))
	}
	a.grant(grantOf(2, 0, 1))
	if got := f.groups["user.slice"]; got != "0-1" {
		t.Errorf("a cgroup whose vCPUs are parked may use %q, want those that are left", got)
	}
	a.grant(grantOf(3, 0, 1, 2, 3))
	if got := f.groups; got["user.slice"] != "2-3" || got["system.slice"] != "0-3" {
		t.Errorf("with all vCPUs the limits are %q", got)
	}
}

// later measures for some seconds, in which parked vCPUs become partitions, and cgroups are read again.
func (a *agent) later(t *testing.T) {
	t.Helper()
	start := a.irqs.Add(20 * time.Second)
	for s := range 4 {
		settles(t, a, start.Add(time.Duration(s)*time.Second))
	}
}

// The administrator gives a cgroup a vCPU that is parked, or one just before a grant: the agent takes it out, and
// leaves the list in the end.
func TestLimitsChangeWhileVCPUsAreParked(t *testing.T) {
	f := withPrograms(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 2))
	a.later(t)
	f.groups["user.slice"] = "2-3"
	f.kinds[3] = "root invalid (Cpu list in cpuset.cpus not exclusive)" // as the kernel does then
	a.later(t)
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2) || r.Means != guest.Partition || f.apart() != guest.Of(3) {
		t.Errorf("used %v by %q; partitions %v; limits %q", r.Used, r.Means, f.apart(), f.groups)
	}
	f.groups["system.slice"] = "1-2"
	a.grant(grantOf(2, 0, 1))
	a.grant(grantOf(3, 0, 1, 2, 3))
	if got := f.groups; got["user.slice"] != "2-3" || got["system.slice"] != "1-2" {
		t.Errorf("with all vCPUs the limits are %q", got)
	}
}

// The list of a cgroup whose programs have ended keeps no vCPU from becoming a partition.
func TestEmptyCgroupsHaveNoLimit(t *testing.T) {
	f := withPrograms(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	a.grant(grantOf(2, 0, 1, 2))
	f.emptied = "user.slice"
	a.grant(grantOf(3, 0))
	a.later(t)
	if r := a.mustReport(t); r.Means != guest.Partition || f.apart() != guest.Of(1, 2, 3) {
		t.Errorf("means %q, partitions %v, limits %q", r.Means, f.apart(), f.groups)
	}
}

// The agent's threads return to the home vCPU after each change for which the kernel lets them go. On other vCPUs they
// wake these at each look, and count as threads that need a vCPU.
func TestTheAgentStaysAtHome(t *testing.T) {
	f := withPrograms(4)
	a := start(t, f)
	at := time.Unix(100, 0)
	for i, do := range []func(){
		func() {}, // the start
		func() { a.grant(grantOf(1, 0, 1)) },
		func() { at = at.Add(apartAfter) },
		func() { at = at.Add(apartAfter) },
		func() { a.grant(grantOf(2, 0, 1, 2, 3)) },
	} {
		do()
		a.tidy()
		settles(t, a, at)
		if f.strayed {
			t.Errorf("step %d: the agent's threads are on all vCPUs", i)
		}
	}
	if n := strings.Count(strings.Join(f.writes, "\n"), "cpuset.cpus.partition="); n < 4 {
		t.Errorf("only %d partitions were made and ended", n)
	}
}

// A kernel that makes no more partitions gets the next means: also what was a partition comes back.
func TestPartitionsEnd(t *testing.T) {
	f := withPrograms(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 2))
	a.later(t)
	f.partitions = false
	a.grant(grantOf(2, 0, 1))
	a.later(t)
	if r := a.mustReport(t); r.Used != guest.Of(0, 1) || r.Means != guest.Offline {
		t.Errorf("used %v by %q", r.Used, r.Means)
	}
	a.later(t)
	a.grant(grantOf(3, 0, 1, 2, 3))
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2, 3) || f.forPrograms() != r.Used {
		t.Errorf("used %v by %q, by programs %v", r.Used, r.Means, f.forPrograms())
	}
}

// A partition of something else in the guest stays, and its vCPU is in use.
func TestPartitionsOfOthersStay(t *testing.T) {
	f := withPrograms(4)
	f.others = guest.Of(2)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 2))
	a.later(t)
	a.grant(grantOf(2, 0, 1, 2, 3))
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2, 3) || r.Means != guest.Partition || f.others != guest.Of(2) {
		t.Errorf("used %v by %q, partition of others %v; limits %q", r.Used, r.Means, f.others, f.groups)
	}
}

// Programs that are in no cgroup get one. Kernel threads and the agent stay in the root.
func TestProgramsInTheRootGetACgroup(t *testing.T) {
	f := newFake(4)
	f.files[limitsFile] = ""
	f.files[systemRoot+"/cgroup.procs"] = "1\n2\n40\n50\n77\n"
	f.files["/proc/1/stat"] = "1 (init) S 0 1 1 0 -1 4194560 0"
	f.files["/proc/2/stat"] = "2 (kthreadd) S 0 0 0 0 -1 2129984 0"
	f.files["/proc/50/stat"], f.files["/proc/self/stat"] = "50 (numavisor-guest) S 1 50 50 0 -1 4194304 0", "50 (numavisor-guest) S 1"
	f.files["/proc/40/stat"] = "40 (a (b) S 1 40 40 0 -1 4194304 0"
	a := start(t, f)
	if got := f.files[systemRoot+"/cgroup.procs"]; got != "2\n50\n77\n" {
		t.Errorf("left in the root are %q", got)
	}
	a.grant(grantOf(1, 0, 1))
	if got := f.groups[ownPrograms]; got != "0-1" {
		t.Errorf("the programs may use vCPUs %q", got)
	}
}

// Whatever grants come, and in which order: the guest uses what the greatest epoch
// says, also after restarts of the agent, and a report says what is so.
func TestTheGreatestEpochHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake(6)
		if rapid.Bool().Draw(t, "groups") {
			f = withPrograms(6)
			f.groups["user.slice"] = rapid.SampledFrom([]string{"", "0-3", "5", "1,4"}).Draw(t, "limit")
		}
		f.partitions = rapid.Bool().Draw(t, "partitions")
		now := time.Unix(0, 0)
		a, err := newAgent(f, f.wait, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		var newest guest.Grant
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				if a, err = newAgent(f, f.wait, t.Logf); err != nil {
					t.Fatal(err)
				}
			}
			ids := rapid.SliceOf(rapid.IntRange(0, 5)).Draw(t, "vcpus")
			g := grantOf(rapid.Uint64Range(1, 10).Draw(t, "epoch"), append(ids, 0)...)
			a.grant(g)
			if g.Epoch >= newest.Epoch {
				newest = g
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "seconds")) * time.Second)
			settles(t, a, now)
			r := a.mustReport(t)
			if r.Epoch != newest.Epoch || r.Used != newest.VCPUs || f.kicked != (guest.VCPUs{}) {
				t.Fatalf("epoch %d: used %v; want epoch %d: %v; parked ones %v are woken", r.Epoch, r.Used, newest.Epoch,
					newest.VCPUs, f.kicked)
			}
			if programs := f.forPrograms(); programs.Without(r.Used) != (guest.VCPUs{}) {
				t.Fatalf("programs may use %v, and %v are in use", programs, r.Used)
			}
		}
	})
}

// A vCPU on which something still runs is not acknowledged. Kernel threads are moved
// away, and the acknowledgement follows when it is idle.
func TestARestlessVCPUIsNotAcknowledged(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	f.busy[2] = true
	stubborn := &stubborn{fake: f}
	a.k, a.parker.k = stubborn, stubborn
	a.grant(grantOf(1, 0, 1))
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2) {
		t.Errorf("used %v; vCPU 2 runs, vCPU 3 does not", r.Used)
	}
	if stubborn.tried == 0 {
		t.Error("no kernel thread was moved")
	}
	delete(f.busy, 2)
	if err := a.measure(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := a.mustReport(t); r.Used != guest.Of(0, 1) {
		t.Errorf("used %v; vCPU 2 is idle now", r.Used)
	}
}

// stubborn has a thread that cannot be moved.
type stubborn struct {
	*fake
	tried int
}

func (s *stubborn) moveThreads(guest.VCPUs, guest.VCPUs) { s.tried++ }

// The kernel gives work to a vCPU that has come back: it sees that it is idle. And it does not wake a parked one to
// balance for those that are busy. Also an agent that starts again finds what is parked.
func TestAReturnedVCPUGetsWork(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	for i, want := range []guest.VCPUs{guest.Of(0), guest.Of(0, 2), guest.Of(0, 1, 2), guest.Of(0, 3)} {
		if i == 2 {
			a = start(t, f)
		}
		a.grant(guest.Grant{V: guest.Version, Epoch: uint64(i + 1), VCPUs: want})
		used := a.mustReport(t).Used
		seen := f.present.Without(f.apart()).Without(f.unseen)
		if seen != want || used != want || f.kicked != (guest.VCPUs{}) || f.at >= 0 {
			t.Errorf("grant %d: vCPUs %v get work, %v are used, want %v; parked ones %v are woken; the agent is on vCPU %d",
				i, seen, used, want, f.kicked, f.at)
		}
	}
}

// vCPUs that something else in the guest has set apart are in use: the agent neither takes nor returns them.
func TestPartitionsOfOthersAreLeftAlone(t *testing.T) {
	f := newFake(4)
	f.others = guest.Of(3)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1, 3))
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 3) || r.Means != guest.Partition {
		t.Errorf("used %v by %q", r.Used, r.Means)
	}
}

// Someone else's change of the guest is undone with the next measurement.
func TestDriftIsUndone(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	f.kinds[2] = "root invalid (Cpu list in cpuset.cpus not exclusive)"
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2) {
		t.Errorf("used %v: a partition is invalid", r.Used)
	}
	if err := a.measure(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := a.mustReport(t); r.Used != guest.Of(0, 1) {
		t.Errorf("used %v", r.Used)
	}
}

// A grant waits for one partition at most: the agent makes one at a time, that of the vCPU that was parked first, and
// none of a vCPU that was parked a moment ago and may be granted again soon.
func TestPartitionsAreMadeOneAtATime(t *testing.T) {
	f := withPrograms(5)
	a := start(t, f)
	begin := time.Unix(100, 0)
	a.grant(grantOf(1, 0, 1, 2))
	a.setApart(begin)
	a.grant(grantOf(2, 0, 1))
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{800 * time.Millisecond, ""}, {1100 * time.Millisecond, "3"}, {1200 * time.Millisecond, "3-4"},
		{1300 * time.Millisecond, "3-4"}, {1800 * time.Millisecond, "2-4"}, {2 * time.Second, "2-4"},
	} {
		a.setApart(begin.Add(c.after))
		if got := a.parker.apart.String(); got != c.want {
			t.Errorf("after %v the partitions are of vCPUs %q, want %q", c.after, got, c.want)
		}
	}
}

func TestInterruptsFollow(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	if got := f.files["/proc/irq/9/smp_affinity_list"]; got != "0-3" {
		t.Errorf("IRQ 9 on vCPUs %s before the report: that takes longer than all the rest", got)
	}
	a.tidy()
	if got := f.files["/proc/irq/9/smp_affinity_list"]; got != "0-1" {
		t.Errorf("IRQ 9 on vCPUs %s", got)
	}
	if got := f.files[workqueues]; got != "00000000,00000003" {
		t.Errorf("unbound workqueues on %s", got)
	}
	a.grant(grantOf(2, 0, 1, 2, 3))
	a.tidy()
	if got := f.files["/proc/irq/9/smp_affinity_list"]; got != "0-3" {
		t.Errorf("IRQ 9 on vCPUs %s after all came back", got)
	}
}

func TestDemand(t *testing.T) {
	f := newFake(2)
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 4/120 99"
	f.files[pressureFile] = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 total=9"
	f.busy[1] = true
	m := meter{k: f}
	if _, err := m.mean(time.Unix(0, int64(f.now)), f.present); err != nil {
		t.Fatal(err)
	}
	f.wait(time.Second)
	f.files[pressureFile] = "some avg10=0.00 avg60=0.00 avg300=0.00 total=251000\nfull avg10=0.00 total=9"
	d, err := m.mean(time.Unix(0, int64(f.now)), f.present)
	if err != nil || d.running != 1000 || d.stalled != 250 || d.use != "09" {
		t.Errorf("%+v, %v; want 1 vCPU busy, 25 %% stalled", d, err)
	}
	f.wait(time.Second)
	f.own = 400 * time.Millisecond
	if d, err = m.mean(time.Unix(0, int64(f.now)), f.present); err != nil || d.running != 600 {
		t.Errorf("%+v, %v; want 0.6 vCPUs: the agent itself took 0.4", d, err)
	}
}

// Six threads meet at barriers. On four vCPUs four of them run first, and two then, while four wait for them: the mean
// is four threads, and a program that is granted four vCPUs for that would never have six. Work that is over, and what
// was there at one look alone, is no demand.
func TestDemandIsThatOfThreadsAndNotOfTheirVCPUs(t *testing.T) {
	for _, c := range []struct {
		name  string
		looks []int64
		want  int64
	}{
		{"unknown", nil, -1}, {"once", []int64{3}, -1}, {"barriers", []int64{6, 2, 6, 2, 6, 2, 6, 2}, 6},
		{"time-slices", []int64{6, 6, 5, 4, 2, 1}, 6}, {"noise", []int64{1, 1, 1, 9, 1, 1, 1, 1}, 1},
		{"over", []int64{6, 6, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1}, 1},
	} {
		f := newFake(8)
		a := start(t, f)
		a.grant(grantOf(1, 0, 1, 2, 3))
		for _, n := range c.looks {
			a.meter.note(n, n)
		}
		if got := a.meter.most(); got != c.want {
			t.Errorf("%s: %d threads, want %d", c.name, got, c.want)
		}
		r := a.mustReport(t)
		if c.want > 0 && (r.Running != 1000*min(4, c.want) || r.Running+r.Waiting != 1000*c.want) {
			t.Errorf("%s: running %d, waiting %d", c.name, r.Running, r.Waiting)
		}
	}
}

func TestMovable(t *testing.T) {
	for stat, want := range map[string]bool{
		"12 (kworker/u8:1 x) I 2 0 0 0 -1 2129984 0": true,
		"15 (migration/0) S 2 0 0 0 -1 69238848 0":   false, // PF_NO_SETAFFINITY
		"900 (bash) S 2 0 0 0 -1 4194304 0":          false,
		"900 (bash":                                  false,
	} {
		if movable(stat) != want {
			t.Errorf("%s: movable %t", stat, !want)
		}
	}
}

// A guest without udev has no links by the ports' names.
func TestAPortIsFoundByItsNameWithoutUdev(t *testing.T) {
	f := newFake(2)
	f.files["/sys/class/virtio-ports/vport1p1/name"] = "org.qemu.guest_agent.0"
	f.files["/sys/class/virtio-ports/vport2p1/name"] = guest.Port
	for channel, want := range map[string]string{
		"/dev/virtio-ports/" + guest.Port: "/dev/vport2p1", "/dev/virtio-ports/other": "", "/run/" + guest.Port: "",
	} {
		if got := deviceOf(f, channel); got != want {
			t.Errorf("the device of %s is %q, want %q", channel, got, want)
		}
	}
}
