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
		"Linux 6.1":               {func(*fake) {}, guest.Partition, guest.Of(0, 3)},
		"lists are fixed":         {func(f *fake) { f.inPlace = false }, guest.Flip, guest.Of(0, 3)},
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

// A change of the list is one write: the partition is not made again.
func TestAPartitionStaysInEffect(t *testing.T) {
	f := newFake(8)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	f.writes = nil
	a.grant(grantOf(2, 0, 1, 5))
	want := group + "/cpuset.cpus=2-4,6-7"
	if f.writes[1] != want || slices.ContainsFunc(f.writes, func(w string) bool { return strings.Contains(w, "partition=") }) {
		t.Errorf("writes %q, want %q alone after the epoch", f.writes, want)
	}
}

// Whatever grants come, and in which order: the guest uses what the greatest epoch
// says, also after restarts of the agent, and a report says what is so.
func TestTheGreatestEpochHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake(6)
		f.inPlace, f.partitions = rapid.Bool().Draw(t, "inPlace"), rapid.Bool().Draw(t, "partitions")
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
			r := a.mustReport(t)
			if r.Epoch != newest.Epoch || r.Used != newest.VCPUs {
				t.Fatalf("epoch %d: used %v; want epoch %d: %v", r.Epoch, r.Used, newest.Epoch, newest.VCPUs)
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

// The kernel gives work to a vCPU that has come back, also where an earlier agent has made the partition. Before
// Linux 6.6 it did not after a change of an isolated partition's list.
func TestAReturnedVCPUGetsWork(t *testing.T) {
	for _, before := range []string{"member", "isolated"} {
		f := newFake(4)
		a := start(t, f)
		f.files[group+"/cpuset.cpus.partition"] = before
		if before == "isolated" {
			f.files[group+"/cpuset.cpus"] = "1-3"
		}
		for i, want := range []guest.VCPUs{guest.Of(0), guest.Of(0, 2), guest.Of(0, 1, 2), guest.Of(0, 3)} {
			a.grant(guest.Grant{V: guest.Version, Epoch: uint64(i + 1), VCPUs: want})
			if used := a.mustReport(t).Used; i > 0 && (f.balanced != want || used != want) {
				t.Errorf("%s before, grant %d: vCPUs %v get work, %v are used, want %v", before, i, f.balanced, used, want)
			}
		}
	}
}

// Someone else's change of the guest is undone with the next measurement.
func TestDriftIsUndone(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	f.files[group+"/cpuset.cpus.partition"] = "isolated invalid (Cpu list in cpuset.cpus not exclusive)"
	if r := a.mustReport(t); r.Used != guest.Of(0, 1, 2, 3) {
		t.Errorf("used %v: the partition is invalid", r.Used)
	}
	if err := a.measure(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := a.mustReport(t); r.Used != guest.Of(0, 1) {
		t.Errorf("used %v", r.Used)
	}
}

func TestInterruptsFollow(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 1))
	if got := f.files["/proc/irq/9/smp_affinity_list"]; got != "0-1" {
		t.Errorf("IRQ 9 on vCPUs %s", got)
	}
	if got := f.files[workqueues]; got != "00000000,00000003" {
		t.Errorf("unbound workqueues on %s", got)
	}
	a.grant(grantOf(2, 0, 1, 2, 3))
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
	m.note(2)
	m.note(0)
	f.wait(time.Second)
	f.files[pressureFile] = "some avg10=0.00 avg60=0.00 avg300=0.00 total=251000\nfull avg10=0.00 total=9"
	d, err := m.mean(time.Unix(0, int64(f.now)), f.present)
	if err != nil || d.running != 1000 || d.waiting != 1000 || d.stalled != 250 || d.use != "09" {
		t.Errorf("%+v, %v; want 1 vCPU busy, 1 of 3 threads waiting, 25 %% stalled", d, err)
	}
	f.wait(time.Second)
	f.own = 400 * time.Millisecond
	if d, err = m.mean(time.Unix(0, int64(f.now)), f.present); err != nil || d.running != 600 {
		t.Errorf("%+v, %v; want 0.6 vCPUs: the agent itself took 0.4", d, err)
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
