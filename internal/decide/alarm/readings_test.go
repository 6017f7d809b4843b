package alarm

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// values returns the readings of one object, by quantity; NaN means unread.
func (s *scene) values(object string) map[alarm.Quantity]float64 {
	j := &judgement{in: &s.in, now: s.now, there: map[inventory.Ref]bool{}}
	got := map[alarm.Quantity]float64{}
	for _, r := range j.readings() {
		if r.object.String() == object {
			got[r.quantity] = r.value
			if r.unread {
				got[r.quantity] = math.NaN()
			}
		}
	}
	return got
}

func wantValues(t *testing.T, want, got map[alarm.Quantity]float64) {
	t.Helper()
	equal := cmp.Comparer(func(a, b float64) bool { return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) < 1e-9 })
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("readings (-want +got):\n%s", diff)
	}
}

func TestReadings_OfANode(t *testing.T) {
	unread := math.NaN()
	for _, c := range []struct {
		name   string
		change func(*scene)
		want   map[alarm.Quantity]float64
	}{
		{"at ease", func(*scene) {}, map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0,
			alarm.NodeMemory: 0.2}},
		{"threads wait", func(s *scene) { s.node().Wait = 2 },
			map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0.5, alarm.NodeMemory: 0.2}},
		{"no window yet", func(s *scene) { s.in.Sample.Window = 0 },
			map[alarm.Quantity]float64{alarm.NodeCPU: unread, alarm.NodeWait: unread, alarm.NodeMemory: 0.2}},
		{"no CPUs", func(s *scene) { s.node().CPUs = 0 }, map[alarm.Quantity]float64{alarm.NodeMemory: 0.2}},
		{"pools do not count as used memory", func(s *scene) {
			s.node().HugePages = []topology.HugePagePool{{Size: topology.GiB, Total: 1, Free: 1}}
		}, map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0, alarm.NodeMemory: 1.0 / 9}},
		{"all memory in pools", func(s *scene) {
			s.node().HugePages = []topology.HugePagePool{{Size: topology.GiB, Total: 10}}
		}, map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0}},
		{"reclaimable memory is not used", func(s *scene) {
			s.in.Topology = &topology.Topology{Nodes: []topology.Node{
				{ID: 1, Reclaimable: topology.GiB}, {ID: 2, Reclaimable: topology.GiB},
			}}
		}, map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0, alarm.NodeMemory: 0.1}},
		{"more free than there is", func(s *scene) { s.node().Free = 11 * topology.GiB },
			map[alarm.Quantity]float64{alarm.NodeCPU: 0.25, alarm.NodeWait: 0, alarm.NodeMemory: 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.change(s)
			wantValues(t, c.want, s.values("node 2"))
		})
	}
}

func TestReadings_OfHugePagePools(t *testing.T) {
	s := newScene(t)
	s.node().HugePages = []topology.HugePagePool{
		{Size: 2 * topology.MiB, Total: 8, Free: 2}, {Size: topology.GiB}, // the second is empty and has no share
	}
	wantValues(t, map[alarm.Quantity]float64{alarm.NodeHugePages: 0.75}, s.values("node 2: 2 MiB pages"))
	wantValues(t, map[alarm.Quantity]float64{}, s.values("node 2: 1 GiB pages"))
}

func bandwidth(mbps float64) *topology.Topology {
	return &topology.Topology{Measured: &topology.Measured{
		Nodes: []topology.NodeID{2}, LatencyNanos: [][]float64{{80}}, BandwidthMBps: [][]float64{{mbps}},
	}, Nodes: []topology.Node{{ID: 2}}}
}

func TestReadings_OfNodeTraffic(t *testing.T) {
	for _, c := range []struct {
		name    string
		traffic float64
		most    float64
		change  func(*scene)
		want    any // nil: no reading
	}{
		{"half of the bandwidth", 500, 1000, func(*scene) {}, 0.5},
		{"bandwidth not measured", 500, 0, func(*scene) {}, nil},
		{"traffic unknown, a guest works there", 0, 1000, func(*scene) {}, math.NaN()},
		{"traffic unknown, all guests idle", 0, 1000, func(s *scene) {
			s.in.Sample.Guests[0].Load.CPU, s.in.Sample.Guests[1].Load.CPU = 0.09, 0
		}, 0.0},
		{"traffic unknown, the guest has just enough demand", 0, 1000, func(s *scene) {
			s.in.Sample.Guests[0].Load.CPU, s.in.Sample.Guests[1].Load.CPU = 0.1, 0
		}, math.NaN()},
		{"traffic unknown, guests work elsewhere", 0, 1000, func(s *scene) {
			for i := range s.in.Sample.Guests {
				s.in.Sample.Guests[i].MemoryByNode = topology.MemoryByNode{3: topology.GiB}
			}
		}, 0.0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.in.Topology, s.node().MemoryMBps = bandwidth(c.most), c.traffic
			c.change(s)
			got, there := s.values("node 2")[alarm.NodeTraffic]
			if there != (c.want != nil) {
				t.Fatalf("reading %v, want %v", got, c.want)
			}
			if want, ok := c.want.(float64); ok && !(math.Abs(got-want) < 1e-9 || math.IsNaN(got) && math.IsNaN(want)) {
				t.Errorf("reading %v, want %v", got, want)
			}
		})
	}
}

func TestShareTo(t *testing.T) {
	const gib = topology.GiB
	byNode := topology.MemoryByNode{1: gib, 2: 3 * gib}
	for _, c := range []struct {
		name  string
		guest inventory.GuestSample
		want  float64
	}{
		{"by the location of its memory", inventory.GuestSample{MemoryByNode: byNode}, 0.75},
		{"no memory", inventory.GuestSample{}, 0},
		{"as measured", inventory.GuestSample{MemoryByNode: byNode, Accesses: []inventory.AccessShare{
			{To: 2, Share: 0.25}, {To: 1, Share: 0.625}, {To: 2, Share: 0.125},
		}}, 0.375},
	} {
		if got := shareTo(&c.guest, 2); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestReadings_OfAGuest(t *testing.T) {
	unread := math.NaN()
	remote := func(share float64, source inventory.AccessSource) *inventory.Remote {
		return &inventory.Remote{Share: share, Source: source}
	}
	for _, c := range []struct {
		name   string
		change func(*scene)
		known  Guest
		want   map[alarm.Quantity]float64
	}{
		{"nothing known", func(*scene) {}, Guest{},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: unread, alarm.GuestDrift: 0}},
		{"waits", func(s *scene) { s.db().Load.Wait = 3 }, Guest{},
			map[alarm.Quantity]float64{alarm.GuestWait: 0.75, alarm.GuestRemote: unread, alarm.GuestDrift: 0}},
		{"waits, with the least demand that counts", func(s *scene) { s.db().Load.CPU, s.db().Load.Wait = 0.05, 0.05 },
			Guest{},
			map[alarm.Quantity]float64{alarm.GuestWait: 0.5, alarm.GuestRemote: unread, alarm.GuestDrift: 0}},
		{"waits, with less demand", func(s *scene) { s.db().Load.CPU, s.db().Load.Wait = 0.04, 0.05 }, Guest{},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: unread, alarm.GuestDrift: 0}},
		{"no window yet", func(s *scene) { s.db().Load.Window = 0 }, Guest{},
			map[alarm.Quantity]float64{alarm.GuestWait: unread, alarm.GuestRemote: unread, alarm.GuestDrift: 0}},
		{"local share known", func(*scene) {}, Guest{LocalShare: new(0.75)},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.25, alarm.GuestDrift: 0}},
		{"accesses measured", func(s *scene) { s.db().Load.Remote = remote(0.4, inventory.AccessPMU) },
			Guest{LocalShare: new(0.75)},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.4, alarm.GuestDrift: 0}},
		{"accesses measured of a guest that idles", func(s *scene) {
			s.db().Load.CPU, s.db().Load.Remote = 0.05, remote(0.4, inventory.AccessPMU)
		}, Guest{}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0, alarm.GuestDrift: 0}},
		{"accesses measured of a guest with the least demand", func(s *scene) {
			s.db().Load.CPU, s.db().Load.Remote = 0.1, remote(0.4, inventory.AccessPMU)
		}, Guest{}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.4, alarm.GuestDrift: 0}},
		{"accesses estimated of a guest that idles", func(s *scene) {
			s.db().Load.CPU, s.db().Load.Remote = 0.05, remote(0.4, inventory.AccessEstimate)
		}, Guest{}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.4, alarm.GuestDrift: 0}},
		{"accesses are measured, it made none and idles", func(s *scene) {
			s.in.Sample.Accesses, s.db().Load.CPU = []inventory.AccessSource{inventory.AccessPMU}, 0.05
		}, Guest{LocalShare: new(0.75)}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0,
			alarm.GuestDrift: 0}},
		{"accesses are measured, it has none but works", func(s *scene) {
			s.in.Sample.Accesses = []inventory.AccessSource{inventory.AccessPMU}
		}, Guest{LocalShare: new(0.75)}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.25,
			alarm.GuestDrift: 0}},
		{"accesses are only estimated, it idles", func(s *scene) {
			s.in.Sample.Accesses, s.db().Load.CPU = []inventory.AccessSource{inventory.AccessEstimate}, 0.05
		}, Guest{LocalShare: new(0.75)}, map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0.25,
			alarm.GuestDrift: 0}},
		{"drifted", func(*scene) {}, Guest{Nodes: topology.SetOf[topology.NodeID](1), DriftShare: new(0.5),
			LocalShare: new(1.0)},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0, alarm.GuestDrift: 0.5}},
		{"drift not known", func(*scene) {}, Guest{Nodes: topology.SetOf[topology.NodeID](1), LocalShare: new(1.0)},
			map[alarm.Quantity]float64{alarm.GuestWait: 0, alarm.GuestRemote: 0, alarm.GuestDrift: unread}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.change(s)
			c.known.Name = "db"
			s.in.Guests, s.in.FailedMoves = []Guest{c.known}, map[string]int{"db": 2, "web": 5}
			c.want[alarm.StuckMove] = 2
			wantValues(t, c.want, s.values("guest db"))
		})
	}
}

// An alarm names its causes as of the last value at or beyond its threshold.
func TestJudge_CausesFollowTheLastValueBeyond(t *testing.T) {
	s := newScene(t)
	s.node().CPU = 3.9
	raised := s.wantOnly(s.pass(62*time.Second), alarm.NodeCPU, "node 2")
	s.in.Sample.Guests[0].CPUByNode[2] = 3 // db overtakes web
	s.pass(2 * time.Second)
	now := func() alarm.Alarm {
		for _, track := range s.state.Tracks {
			if track.Alarm != nil {
				return *track.Alarm
			}
		}
		t.Fatal("no alarm")
		return alarm.Alarm{}
	}
	if diff := cmp.Diff([]string{"db", "web"}, now().Guests); diff != "" {
		t.Errorf("causes while beyond (-want +got):\n%s", diff)
	}
	last := s.now
	if !now().Last.Equal(last) || last.Equal(raised.First) {
		t.Errorf("last beyond at %v, want %v", now().Last, last)
	}
	s.node().CPU = 3.75 // neither beyond the threshold nor clear
	s.in.Sample.Guests[1].CPUByNode[2] = 3.5
	s.pass(10 * time.Second)
	if diff := cmp.Diff([]string{"db", "web"}, now().Guests); diff != "" {
		t.Errorf("causes since under the threshold (-want +got):\n%s", diff)
	}
	if !now().Last.Equal(last) {
		t.Errorf("last beyond at %v, want %v", now().Last, last)
	}
	s.node().CPU = 3.8 // at the threshold
	s.pass(2 * time.Second)
	if diff := cmp.Diff([]string{"web", "db"}, now().Guests); diff != "" {
		t.Errorf("causes at the threshold (-want +got):\n%s", diff)
	}
	if !now().Last.Equal(s.now) {
		t.Errorf("last beyond at %v, want %v", now().Last, s.now)
	}
}

func TestJudge_NamesTheFiveLargestCauses(t *testing.T) {
	amounts := map[string]float64{"a": 1, "b": 6, "c": 5, "d": 4, "e": 3, "f": 2, "g": 0}
	var got []string
	for _, c := range largest(amounts, func(float64) string { return "" }) {
		got = append(got, c.guest)
	}
	if diff := cmp.Diff([]string{"b", "c", "d", "e", "f"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The order of changes and tracks does not depend on the order of the sample.
func TestJudge_OrderOfChanges(t *testing.T) {
	s := newScene(t)
	s.rules = policy.Alarms{alarm.GuestWait: {For: 1, Quiet: 1}}
	s.in.Sample.Guests[0], s.in.Sample.Guests[1] = s.in.Sample.Guests[1], s.in.Sample.Guests[0]
	for i := range s.in.Sample.Guests {
		s.in.Sample.Guests[i].Load.Wait = 5
	}
	var got []string
	for _, a := range s.pass(4 * time.Second) {
		got = append(got, a.Object.String())
	}
	if diff := cmp.Diff([]string{"guest db", "guest web"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// mirrored makes db a guest that hands CPUs over, whose agent answers.
func (s *scene) mirrored() *inventory.HandedOver {
	s.in.Guests = []Guest{{Name: "db"}}
	s.db().HandedOver = &inventory.HandedOver{Min: 1, Weight: 100, Means: "partition"}
	return s.db().HandedOver
}

func TestReadings_OfAMirroredGuest(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     func(*scene, *inventory.HandedOver)
		agent, ran float64
	}{
		{"at ease", func(*scene, *inventory.HandedOver) {}, 0, 0},
		{"its agent is silent", func(_ *scene, h *inventory.HandedOver) { h.Silent = true }, 1, 0},
		{"no agent has reported", func(_ *scene, h *inventory.HandedOver) { h.Means = "" }, 1, 0},
		{"it is paused, and so is its agent", func(s *scene, h *inventory.HandedOver) {
			h.Silent, s.in.Guests = true, nil
		}, 0, 0},
		{"released vCPUs ran", func(s *scene, h *inventory.HandedOver) {
			h.Misbehaved, h.MisbehavedAt = 3, s.now.Add(-59*time.Minute)
		}, 0, 3},
		{"they ran long ago", func(s *scene, h *inventory.HandedOver) {
			h.Misbehaved, h.MisbehavedAt = 3, s.now.Add(-time.Hour)
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.change(s, s.mirrored())
			got := s.values("guest db")
			if got[alarm.GuestAgent] != c.agent || got[alarm.GuestMisbehaves] != c.ran {
				t.Errorf("agent %v and misbehaving %v, want %v and %v", got[alarm.GuestAgent],
					got[alarm.GuestMisbehaves], c.agent, c.ran)
			}
			if _, has := s.values("guest web")[alarm.GuestAgent]; has {
				t.Error("a guest that hands no CPUs over has an agent")
			}
		})
	}
}

// Where a mirrored guest's memory is says little about its accesses: its kernel knows the nodes, and its CPUs come and
// go. Measured accesses count.
func TestReadings_RemoteAccessesOfAMirroredGuest(t *testing.T) {
	s := newScene(t)
	s.mirrored()
	s.in.Guests[0].LocalShare = new(0.25)
	if got := s.values("guest db")[alarm.GuestRemote]; got != 0 {
		t.Errorf("by the location of its memory %v are remote", got)
	}
	s.db().Load.Remote = &inventory.Remote{Share: 0.75, Source: inventory.AccessEstimate}
	if got := s.values("guest db")[alarm.GuestRemote]; got != 0 {
		t.Errorf("by estimate %v are remote", got)
	}
	s.db().Load.Remote = &inventory.Remote{Share: 0.75, Source: inventory.AccessPMU}
	if got := s.values("guest db")[alarm.GuestRemote]; got != 0.75 {
		t.Errorf("measured %v are remote", got)
	}
}

// An agent has two minutes to start; its alarm names the guest, and ends with its silence.
func TestJudge_TheAgentOfAMirroredGuest(t *testing.T) {
	s := newScene(t)
	s.mirrored().Means = ""
	s.wantNone(s.pass(2 * time.Minute))
	a := s.wantOnly(s.pass(2*time.Second), alarm.GuestAgent, "guest db")
	if want := "no agent has reported: it keeps the CPUs that it has, until another VM lacks its minimum; from the " +
		"daemon's hand-over of CPUs"; a.Why != want || a.Severity != alarm.Warning || len(a.Guests) != 1 {
		t.Errorf("raised %+v\nwant %s", a, want)
	}
	s.db().HandedOver = nil // the policy no longer hands CPUs over
	s.wantNone(s.pass(time.Minute))
	if a := s.wantOnly(s.pass(2*time.Second), alarm.GuestAgent, "guest db"); a.Active() {
		t.Errorf("not cleared: %+v", a)
	}
}

// A vCPU that ran after its release raises an alarm at once, for an hour.
func TestJudge_AMisbehavingGuest(t *testing.T) {
	s := newScene(t)
	h := s.mirrored()
	h.Misbehaved, h.MisbehavedAt = 1, s.now
	a := s.wantOnly(s.pass(2*time.Second), alarm.GuestMisbehaves, "guest db")
	if want := "1 vCPU ran after the VM had released it, the last at 2026-03-01T12:00:00Z; each was confined to the " +
		"VM's other CPUs; from the daemon's hand-over of CPUs"; a.Why != want {
		t.Errorf("why: %s\nwant %s", a.Why, want)
	}
	if a := s.wantOnly(s.pass(62*time.Minute), alarm.GuestMisbehaves, "guest db"); a.Active() {
		t.Errorf("not cleared after an hour: %+v", a)
	}
}
