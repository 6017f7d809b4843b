package policy

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestBalance_Defaults(t *testing.T) {
	want := Balance{
		Mode: "auto", Migrate: "auto", Wait: 0.1, Access: 0.1, Traffic: 0.8, Clear: 0.7,
		DegradedFor: Duration(10 * time.Second), MinCPUDemand: 0.1,
		MinGain: 0.1, Horizon: Duration(30 * time.Minute), MaxNodeCPU: 0.9,
		Cooldown: Duration(5 * time.Minute), NoReturn: Duration(time.Hour),
		BytesPerRound: 64 << 30, GuestsPerRound: 8, BytesPerSecond: 1 << 30,
		MaxGuestWait: 0.05, MaxBandwidth: 0.25,
	}
	if diff := cmp.Diff(want, Balance{}.WithDefaults()); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	// A field that is added later needs a default, or belongs to this list.
	noDefault := map[string]bool{"Guests": true, "Windows": true, "Pace": true}
	filled := reflect.ValueOf(Balance{}.WithDefaults())
	for i := range filled.NumField() {
		if name := filled.Type().Field(i).Name; filled.Field(i).IsZero() != noDefault[name] {
			t.Errorf("%s: default is %v", name, filled.Field(i))
		}
	}
}

func TestBalance_WithDefaultsKeepsWhatIsSet(t *testing.T) {
	set := Balance{
		Mode: ModeAdvise, Migrate: ModeOff, Wait: 0.2, Access: 0.3, Traffic: 0.4, Clear: 0.5, DegradedFor: 1,
		MinCPUDemand: 0.6, MinGain: 0.7, Horizon: 2, MaxNodeCPU: 0.8, Cooldown: 3, NoReturn: 4, BytesPerRound: 5,
		GuestsPerRound: 6, BytesPerSecond: 7, MaxGuestWait: 0.9, MaxBandwidth: 0.15, Pace: 8,
	}
	if diff := cmp.Diff(set, set.WithDefaults()); diff != "" {
		t.Errorf("changed by defaults (-set +got):\n%s", diff)
	}
}

func TestPolicy_Defaults(t *testing.T) {
	upTo := 32 * topology.MiB
	want := Policy{
		Overcommit: 2, Count: "cores", Prefer: "spread", GrowHugePagesUpTo: &upTo,
		Weights: &DefaultWeights, SearchSteps: 20_000,
	}
	got := Policy{}.WithDefaults()
	got.Balance, got.Movers = Balance{}, Movers{} // tested for themselves
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestPolicy_MayGrowUpToTheLimit(t *testing.T) {
	limit := topology.GiB
	for _, c := range []struct {
		name   string
		policy Policy
		size   topology.Bytes
		want   bool
	}{
		{"small pages have no pool", Policy{}, 0, false},
		{"below the default limit", Policy{}, 2 * topology.MiB, true},
		{"at the default limit", Policy{}, 32 * topology.MiB, true},
		{"beyond the default limit", Policy{}, 64 * topology.MiB, false},
		{"at a limit that is set", Policy{GrowHugePagesUpTo: &limit}, topology.GiB, true},
		{"beyond a limit that is set", Policy{GrowHugePagesUpTo: &limit}, 2 * topology.GiB, false},
	} {
		if got := c.policy.MayGrow(c.size); got != c.want {
			t.Errorf("%s: MayGrow(%v) = %v, want %v", c.name, c.size, got, c.want)
		}
	}
}

func TestAlarms_FieldsNotSetHaveTheDefault(t *testing.T) {
	set := Threshold{Warning: 0.2, Critical: 0.3, Clear: 0.4, For: 5, Quiet: 6}
	def := AlarmDefaults()[alarm.GuestWait]
	for _, c := range []struct {
		field string
		unset func(*Threshold)
		want  func(*Threshold)
	}{
		{"warning", func(t *Threshold) { t.Warning = 0 }, func(t *Threshold) { t.Warning = def.Warning }},
		{"critical", func(t *Threshold) { t.Critical = 0 }, func(t *Threshold) { t.Critical = def.Critical }},
		{"clear", func(t *Threshold) { t.Clear = 0 }, func(t *Threshold) { t.Clear = def.Clear }},
		{"for", func(t *Threshold) { t.For = 0 }, func(t *Threshold) { t.For = def.For }},
		{"quiet", func(t *Threshold) { t.Quiet = 0 }, func(t *Threshold) { t.Quiet = def.Quiet }},
	} {
		given, want := set, set
		c.unset(&given)
		c.want(&want)
		got := Alarms{alarm.GuestWait: given}.WithDefaults()[alarm.GuestWait]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s not set (-want +got):\n%s", c.field, diff)
		}
	}
}

// Each limit is allowed, the next value beyond it is not.
func TestPolicy_ValidateLimits(t *testing.T) {
	const tiny = 1e-9
	weight := func(v float64) Policy { return Policy{Weights: &Weights{Latency: v}} }
	balance := func(set func(*Balance)) Policy {
		var p Policy
		set(&p.Balance)
		return p
	}
	threshold := func(warning, critical, clearAt float64, hold Duration) Policy {
		return Policy{
			Alarms: Alarms{alarm.NodeTraffic: {Warning: warning, Critical: critical, Clear: clearAt, For: hold}},
		}
	}
	for _, c := range []struct {
		name  string
		limit Policy
		above Policy
	}{
		{"overcommit, least", Policy{Overcommit: 1}, Policy{Overcommit: 1 - tiny}},
		{"overcommit, most", Policy{Overcommit: 64}, Policy{Overcommit: 64 + tiny}},
		{"search steps", Policy{SearchSteps: 1}, Policy{SearchSteps: -1}},
		{"weight, least", weight(0), weight(-tiny)},
		{"weight, most", weight(100), weight(100 + tiny)},
		{"wait", balance(func(b *Balance) { b.Wait = 1 }), balance(func(b *Balance) { b.Wait = 1 + tiny })},
		{"access", balance(func(b *Balance) { b.Access = 100 }), balance(func(b *Balance) { b.Access = 101 })},
		{"cooldown", balance(func(b *Balance) { b.Cooldown = mostTime }),
			balance(func(b *Balance) { b.Cooldown = mostTime + 1 })},
		{"horizon", balance(func(b *Balance) { b.Horizon = mostMemory }),
			balance(func(b *Balance) { b.Horizon = mostMemory + 1 })},
		{"warning", threshold(1, 1, 1, 1), threshold(1+tiny, 0, 1, 1)},
		{"critical", threshold(0.5, 1, 1, 1), threshold(0.5, 1+tiny, 1, 1)},
		{"critical and warning", threshold(0.5, 0.5, 1, 1), threshold(0.5, 0.5-tiny, 1, 1)},
		{"clear", threshold(0.5, 1, 1, 1), threshold(0.5, 1, 1+tiny, 1)},
		{"clear, least", threshold(0.5, 1, tiny, 1), threshold(0.5, 1, -tiny, 1)},
		{"for", threshold(0.5, 1, 1, mostTime), threshold(0.5, 1, 1, mostTime+1)},
	} {
		if err := c.limit.Validate(); err != nil {
			t.Errorf("%s: at the limit: %v", c.name, err)
		}
		if err := c.above.Validate(); err == nil {
			t.Errorf("%s: accepted beyond the limit", c.name)
		}
	}
}

func TestBalance_PaceBoundsTheCopyRate(t *testing.T) {
	b := Balance{Pace: 300 * topology.MiB}
	if _, from := b.CopyRate(300 * topology.MiB); from != "measured here" {
		t.Errorf("a pace equal to the measured rate: rate is from %q", from)
	}
	if _, from := b.CopyRate(301 * topology.MiB); from != "the policy's pace" {
		t.Errorf("a pace below the measured rate: rate is from %q", from)
	}
}
