package alarm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// scene judges a series of inputs, two seconds apart.
type scene struct {
	t     *testing.T
	rules policy.Alarms
	in    Input
	state alarm.State
	now   time.Time
}

// newScene is one node of 4 CPUs with two lightly loaded guests.
func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{t: t, now: start, in: Input{
		Sample: inventory.Sample{
			Window: 2 * time.Second,
			Nodes: []inventory.NodeSample{{NodeLoad: inventory.NodeLoad{Node: 2, CPU: 1}, CPUs: 4,
				Memory: 10 * topology.GiB, Free: 8 * topology.GiB}},
			Guests: []inventory.GuestSample{
				{
					Name:         "db",
					Load:         inventory.GuestLoad{Window: 2 * time.Second, CPU: 1},
					CPUByNode:    map[topology.NodeID]float64{2: 1},
					MemoryByNode: topology.MemoryByNode{2: topology.GiB},
				},
				{
					Name:         "web",
					Load:         inventory.GuestLoad{Window: 2 * time.Second, CPU: 2},
					CPUByNode:    map[topology.NodeID]float64{2: 2.5},
					MemoryByNode: topology.MemoryByNode{2: topology.GiB / 2},
				},
			},
			Pressure: inventory.Pressure{Memory: new(0.0)},
		},
	}}
}

func (s *scene) node() *inventory.NodeSample { return &s.in.Sample.Nodes[0] }
func (s *scene) db() *inventory.GuestSample  { return &s.in.Sample.Guests[0] }

// pass advances the time and returns the changes during it.
func (s *scene) pass(d time.Duration) []alarm.Alarm {
	s.t.Helper()
	var all []alarm.Alarm
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(2 * time.Second)
		var changes []alarm.Alarm
		// After a restart the daemon has only the state in the file.
		data, err := json.Marshal(s.state)
		if err != nil {
			s.t.Fatal(err)
		}
		var read alarm.State
		if err := json.Unmarshal(data, &read); err != nil {
			s.t.Fatal(err)
		}
		s.state, changes = Judge(s.rules, s.in, read, s.now)
		all = append(all, changes...)
	}
	return all
}

// wantOnly wants exactly one change, of the given quantity.
func (s *scene) wantOnly(changes []alarm.Alarm, q alarm.Quantity, object string) alarm.Alarm {
	s.t.Helper()
	if len(changes) != 1 || changes[0].Quantity != q || changes[0].Object.String() != object {
		s.t.Fatalf("changes are %+v, want one of %s of %s", changes, q, object)
	}
	return changes[0]
}

func (s *scene) wantNone(changes []alarm.Alarm) {
	s.t.Helper()
	if len(changes) != 0 {
		s.t.Fatalf("changes are %+v, want none", changes)
	}
}

func TestAnAlarmFromRaisedToCleared(t *testing.T) {
	s := newScene(t)
	s.rules = policy.Alarms{alarm.NodeCPU: {Critical: 0.99}} // by default this quantity has none
	s.wantNone(s.pass(time.Minute))
	s.node().CPU = 3.9
	s.wantNone(s.pass(60 * time.Second)) // the first value beyond the threshold starts the minute
	a := s.wantOnly(s.pass(2*time.Second), alarm.NodeCPU, "node 2")
	if a.Severity != alarm.Warning || a.Value != 0.975 || a.Threshold != 0.95 || !a.First.Equal(s.now) || !a.Active() {
		t.Errorf("%+v", a)
	}
	if !slices.Equal(a.Guests, []string{"web", "db"}) {
		t.Errorf("caused by %v", a.Guests)
	}
	if want := "3.9 of 4 CPUs are in use (97.5 %); threshold 95.0 %; most by web 2.5 CPUs, db 1.0 CPUs; from " +
		"/proc/stat"; a.Why != want {
		t.Errorf("why: %s\nwant %s", a.Why, want)
	}
	first := a.First
	s.node().CPU = 4
	if a = s.wantOnly(s.pass(62*time.Second), alarm.NodeCPU, "node 2"); a.Severity != alarm.Critical ||
		a.Threshold != 0.99 ||
		a.Worst != 1 {
		t.Errorf("not critical: %+v", a)
	}
	last := s.now
	s.node().CPU = 3.8 // beyond the warning threshold, below the clearing share of the critical one
	s.wantNone(s.pass(2 * time.Second))
	s.node().CPU = 3.74
	s.wantNone(s.pass(60 * time.Second))
	if a = s.wantOnly(s.pass(2*time.Second), alarm.NodeCPU, "node 2"); a.Severity != alarm.Warning || a.Worst != 1 ||
		!a.Last.Equal(last) {
		t.Errorf("not a warning: %+v", a)
	}
	s.node().CPU = 1
	s.wantNone(s.pass(60 * time.Second))
	if a = s.wantOnly(s.pass(2*time.Second), alarm.NodeCPU, "node 2"); a.Active() || !a.Cleared.Equal(s.now) ||
		!a.First.Equal(first) ||
		a.Value != 0.25 {
		t.Errorf("not cleared: %+v", a)
	}
	if len(s.state.Tracks) != 0 {
		t.Errorf("%+v is remembered although no alarm is active", s.state)
	}
}

func TestEachQuantityRaisesAnAlarm(t *testing.T) {
	half, all := 0.5, 1.0
	for name, c := range map[string]struct {
		harm     func(*scene)
		quantity alarm.Quantity
		object   string
		says     string
		guests   []string
	}{
		"wait on the node": {func(s *scene) { s.node().Wait = 1 }, alarm.NodeWait, "node 2", "0.25 per CPU",
			[]string{"web", "db"}},
		"memory": {func(s *scene) { s.node().Free = topology.GiB / 8 }, alarm.NodeMemory, "node 2", "98.8 %",
			[]string{"db", "web"}},
		"memory outside pools": {func(s *scene) {
			s.node().HugePages = []topology.HugePagePool{{Size: topology.GiB, Total: 9, Free: 9}}
			s.node().Free = 0
		}, alarm.NodeMemory, "node 2", "1 GiB of 1 GiB", []string{"db", "web"}},
		"huge pages": {func(s *scene) {
			s.node().HugePages = []topology.HugePagePool{{Size: 2 * topology.MiB, Total: 256}}
			s.in.Guests = []Guest{{Name: "web", PageSize: 2 * topology.MiB}}
		}, alarm.NodeHugePages, "node 2: 2 MiB pages", "256 of 256 pages", []string{"web"}},
		"traffic": {func(s *scene) {
			s.in.Topology = &topology.Topology{Measured: &topology.Measured{Nodes: []topology.NodeID{2},
				BandwidthMBps: [][]float64{{1000}}}}
			s.node().MemoryMBps = 900
			s.db().Load.MemoryMBps = 800
		}, alarm.NodeTraffic, "node 2", "900 of 1000 MB/s", []string{"db"}},
		"pressure": {func(s *scene) { s.in.Sample.Pressure.Memory = &half }, alarm.HostPressure, "host",
			"50.0 % of the time", nil},
		"kernel moves": {func(s *scene) { s.in.Sample.Moves.Balancing = 200_000_000 }, alarm.KernelMoves, "host",
			"100.0 MB/s", nil},
		"wait": {func(s *scene) { s.db().Load.Wait = 0.25 }, alarm.GuestWait, "guest db", "20.0 % of the time",
			[]string{"db"}},
		"remote": {func(s *scene) { s.db().Load.Remote = &inventory.Remote{Share: 0.3, Source: inventory.AccessPMU} },
			alarm.GuestRemote, "guest db", "30.0 % of its accesses leave the node; threshold 20.0 %; from " +
				"pmu", []string{"db"}},
		"remote by estimate": {func(s *scene) { s.in.Guests = []Guest{{Name: "db", LocalShare: &half}} },
			alarm.GuestRemote, "guest db", "from placement estimate", []string{"db"}},
		"drift": {func(s *scene) {
			s.in.Guests = []Guest{{Name: "db", Nodes: topology.SetOf[topology.NodeID](1), DriftShare: &all}}
		}, alarm.GuestDrift, "guest db", "intended nodes 1", []string{"db"}},
		"competitor": {func(s *scene) {
			s.in.Competitors = []status.Competitor{{Name: "numad", What: "it runs",
				Answer: "moves wait"}}
		},
			alarm.CompetingMover, "host: numad", "it runs; moves wait", nil},
		"an expected competitor and an unexpected one": {func(s *scene) {
			s.in.Competitors = []status.Competitor{{Name: "kernel NUMA balancing", What: "on", Expected: true},
				{Name: "numad", What: "it runs"}}
		}, alarm.CompetingMover, "host: numad", "it runs", nil},
		"source-unreadable": {func(s *scene) {
			s.in.Gaps = []inventory.Gap{{Kind: inventory.AccessUnmeasured, Object: inventory.HostRef(), What: "resctrl",
				Why: "permission denied"}}
		},
			alarm.SourceUnreadable, "host", "not seen: resctrl: permission denied", nil},
		"failed moves": {func(s *scene) { s.in.FailedMoves = map[string]int{"db": 3} }, alarm.StuckMove, "guest db",
			"3 of its moves", []string{"db"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			c.harm(s)
			s.pass(6 * time.Minute)
			active := s.state.Active()
			if len(active) != 1 || active[0].Quantity != c.quantity || active[0].Object.String() != c.object {
				t.Fatalf("active are %+v", active)
			}
			if a := active[0]; !strings.Contains(a.Why, c.says) || !slices.Equal(a.Guests, c.guests) {
				t.Errorf("why %q, guests %v", a.Why, a.Guests)
			}
			s.rules = policy.Alarms{c.quantity: {Disabled: true}}
			if a := s.wantOnly(s.pass(2*time.Second), c.quantity, c.object); a.Active() || len(s.state.Active()) != 0 {
				t.Errorf("disabled, and still %+v", a)
			}
		})
	}
}

func TestAlarmsOfVanishedObjectsClear(t *testing.T) {
	s := newScene(t)
	s.db().Load.Wait = 1
	s.node().CPU = 4
	s.pass(2 * time.Minute)
	if n := len(s.state.Active()); n != 2 {
		t.Fatalf("%d alarms, want 2", n)
	}
	nodes, guests := s.in.Sample.Nodes, s.in.Sample.Guests
	s.in.Sample.Guests = guests[1:]
	if a := s.wantOnly(s.pass(2*time.Second), alarm.GuestWait, "guest db"); a.Active() ||
		!strings.HasSuffix(a.Why, "guest db is no longer there") {
		t.Errorf("%+v", a)
	}
	s.in.Sample.Nodes = nil
	if a := s.wantOnly(s.pass(2*time.Second), alarm.NodeCPU, "node 2"); a.Active() {
		t.Errorf("%+v", a)
	}
	s.in.Sample.Nodes, s.in.Sample.Guests = nodes, guests
	s.wantNone(s.pass(time.Minute)) // and does not become an alarm again at once
}

func TestAnUnreadableSourceClearsNothing(t *testing.T) {
	for name, makeUnreadable := range map[string]func(*scene){
		"not measured":     func(s *scene) { s.db().Load.Remote = nil },
		"only an estimate": func(s *scene) { s.db().Load.Remote = &inventory.Remote{Source: inventory.AccessEstimate} },
		"only its memory": func(s *scene) {
			s.db().Load.Remote = nil
			s.in.Guests = []Guest{{Name: "db", LocalShare: new(1.0)}}
		},
		"guest unreadable": func(s *scene) {
			s.in.Sample.Guests = s.in.Sample.Guests[1:]
			s.in.Sample.Gaps = []inventory.Gap{{Kind: inventory.CgroupUnread, Object: inventory.GuestRef("db"),
				What: "its cgroup", Why: "EIO"}}
		},
		"guests not listed": func(s *scene) {
			s.in.Sample.Guests = nil
			s.in.Gaps = []inventory.Gap{inventory.UnseenGap(guest.LibvirtQEMU, "no answer")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.db().Load.Remote = &inventory.Remote{Share: 0.4, Source: inventory.AccessPMU}
			s.wantOnly(s.pass(6*time.Minute), alarm.GuestRemote, "guest db")
			sample, known := s.in, s.in.Guests
			sample.Sample.Guests = slices.Clone(s.in.Sample.Guests)
			makeUnreadable(s)
			changes := s.pass(time.Hour)
			other := func(a alarm.Alarm) bool { return a.Quantity != alarm.SourceUnreadable || !a.Active() }
			if len(changes) == 0 || slices.ContainsFunc(changes, other) {
				t.Fatalf("changes are %+v, want only source-unreadable to be raised", changes)
			}
			active := s.state.Active()
			if len(active) != 1+len(changes) || active[0].Quantity != alarm.GuestRemote || active[0].Value != 0.4 {
				t.Fatalf("active are %+v", active)
			}
			s.in = sample
			s.in.Guests = known
			s.db().Load.Remote = &inventory.Remote{Share: 0.01, Source: inventory.AccessPMU}
			for _, a := range s.pass(5 * time.Minute) {
				if a.Active() {
					t.Errorf("%+v", a)
				}
			}
			if len(s.state.Active()) != 0 {
				t.Errorf("seen again, and still %+v", s.state.Active())
			}
		})
	}
}

// Once no busy guest has memory on a node, the node has no traffic: that is a
// measured value, and the source is still readable.
func TestTrafficEndsWithTheGuestsThatMadeIt(t *testing.T) {
	for name, ends := range map[string]struct {
		so   func(*scene)
		want []alarm.Quantity
	}{
		"they shut down": {func(s *scene) { s.in.Sample.Guests = nil }, []alarm.Quantity{alarm.NodeTraffic}},
		"they move away": {func(s *scene) {
			s.db().MemoryByNode, s.in.Sample.Guests[1].MemoryByNode = nil,
				nil
		}, []alarm.Quantity{alarm.NodeTraffic}},
		"they idle": {func(s *scene) { s.db().Load.CPU, s.in.Sample.Guests[1].Load.CPU = 0, 0.01 },
			[]alarm.Quantity{alarm.NodeTraffic}},
		"it is no longer measured": {func(*scene) {}, []alarm.Quantity{alarm.SourceUnreadable}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.in.Topology = &topology.Topology{
				Measured: &topology.Measured{Nodes: []topology.NodeID{2}, BandwidthMBps: [][]float64{{1000}}},
			}
			s.node().MemoryMBps = 900
			s.wantOnly(s.pass(62*time.Second), alarm.NodeTraffic, "node 2")
			s.node().MemoryMBps = 0
			ends.so(s)
			var got []alarm.Quantity
			for _, a := range s.pass(10 * time.Minute) {
				got = append(got, a.Quantity)
			}
			if diff := cmp.Diff(ends.want, got); diff != "" {
				t.Errorf("changes of (-want +got):\n%s\nactive are %+v", diff, s.state.Active())
			}
		})
	}
}

// An idle guest makes no accesses to measure.
func TestTheRemoteAlarmOfAGuestThatIdlesClears(t *testing.T) {
	s := newScene(t)
	s.in.Sample.Accesses = []inventory.AccessSource{inventory.AccessResctrl}
	s.db().Load.Remote = &inventory.Remote{Share: 0.4, Source: inventory.AccessResctrl}
	s.wantOnly(s.pass(6*time.Minute), alarm.GuestRemote, "guest db")
	s.db().Load.Remote, s.db().Load.CPU = nil, 0.01
	s.in.Guests = []Guest{{Name: "db", LocalShare: new(0.6)}}
	if a := s.wantOnly(s.pass(10*time.Minute), alarm.GuestRemote, "guest db"); a.Active() || a.Value != 0 {
		t.Errorf("%+v", a)
	}
}

func TestAnOutageStartsTheCountAgain(t *testing.T) {
	for gap, want := range map[time.Duration]int{10 * time.Second: 1, time.Hour: 0} {
		s := newScene(t)
		s.node().CPU = 3.9
		s.pass(40 * time.Second)
		s.now = s.now.Add(gap)
		if got := len(s.pass(20 * time.Second)); got != want {
			t.Errorf("after %v without samples: %d alarms, want %d", gap, got, want)
		}
	}
}

func TestAClockSetBackHoldsNothingUp(t *testing.T) {
	s := newScene(t)
	s.node().CPU = 3.9
	s.pass(30 * time.Second)
	s.now = s.now.Add(-time.Hour)
	s.wantOnly(s.pass(40*time.Second), alarm.NodeCPU, "node 2")
}

func TestIdleGuestsDoNotCount(t *testing.T) {
	s := newScene(t)
	s.db().Load = inventory.GuestLoad{
		Window: 2 * time.Second,
		CPU:    0.01,
		Wait:   0.05,
		Remote: &inventory.Remote{Share: 1, Source: inventory.AccessPMU},
	}
	s.wantNone(s.pass(10 * time.Minute))
}

func TestJudgingLeavesItsArgumentsAlone(t *testing.T) {
	s := newScene(t)
	s.node().CPU = 4
	s.pass(2 * time.Minute)
	data, _ := json.Marshal(s.state)
	Judge(nil, s.in, s.state, s.now.Add(time.Second))
	again, _ := json.Marshal(s.state)
	if d := cmp.Diff(string(data), string(again)); d != "" {
		t.Error(d)
	}
}

// One judgement of 200 guests on 8 nodes, all lightly loaded or all waiting.
func BenchmarkJudgeAtEase(b *testing.B)  { benchmarkJudge(b, 0, 0) }
func BenchmarkJudgeAllWait(b *testing.B) { benchmarkJudge(b, 1, 8+8+200) }

func benchmarkJudge(b *testing.B, wait float64, alarms int) {
	b.Helper()
	in := Input{Sample: inventory.Sample{Window: time.Second}}
	for n := range topology.NodeID(8) {
		in.Sample.Nodes = append(
			in.Sample.Nodes,
			inventory.NodeSample{
				NodeLoad: inventory.NodeLoad{Node: n, CPU: 16 * wait},
				CPUs:     16,
				Memory:   topology.TiB,
				Free:     topology.TiB / 100 * topology.Bytes(100-99*wait),
			},
		)
	}
	for i := range 200 {
		in.Sample.Guests = append(in.Sample.Guests, inventory.GuestSample{Name: fmt.Sprintf("guest-%03d", i),
			Load: inventory.GuestLoad{
				Window: time.Second,
				CPU:    1,
				Wait:   wait,
			}, CPUByNode: map[topology.NodeID]float64{topology.NodeID(i % 8): 1}})
	}
	var state alarm.State
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		state, _ = Judge(nil, in, state, now)
	}
	if now.Sub(start) > 2*time.Minute && len(state.Active()) != alarms {
		b.Errorf("%d alarms", len(state.Active()))
	}
}
