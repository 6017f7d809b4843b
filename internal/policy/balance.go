package policy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/topology"
)

// Mode limits what balancing may do.
type Mode string

// Modes. A guest's own mode never exceeds the host's.
const (
	ModeOff    Mode = "off"    // stays as it is
	ModeAdvise Mode = "advise" // moves are shown, none is made
	ModeAuto   Mode = "auto"   // moves are made
)

// Words returns the modes.
func (Mode) Words() []string { return []string{string(ModeOff), string(ModeAdvise), string(ModeAuto)} }

// Balance is the operator's policy for balancing on one host. Fields left at
// zero have the documented default.
type Balance struct {
	// Mode of the host as a whole; default auto.
	Mode Mode `json:"mode,omitempty"`
	// Guests has modes by guest name. Default: auto for guests that Numavisor
	// created, advise for all others, even if Numavisor bound them.
	Guests map[string]Mode `json:"guests,omitempty"`
	// Migrate limits what a fleet's server may do by itself: migrations to other hosts that
	// relieve a host; default auto. It never exceeds the guest's mode.
	Migrate Mode `json:"migrate,omitempty"`

	// Windows are the times in which moves may be made; at others they are
	// only advised. None: always.
	Windows []Window `json:"windows,omitempty"`

	// Wait is from which share of the CPU time that a guest wants, but does
	// not get, it is degraded; default 0.1.
	Wait float64 `json:"wait,omitempty"`
	// Access is from which latency of its mean access over the best of the
	// host, less 1, a guest is degraded; default 0.1.
	Access float64 `json:"access,omitempty"`
	// Traffic is from which use of its nodes' memory bandwidth a guest is degraded; default 0.8.
	Traffic float64 `json:"traffic,omitempty"`
	// Clear is at which share of these thresholds degradation ends; default 0.7.
	Clear float64 `json:"clear,omitempty"`
	// DegradedFor is how long a guest must have been degraded before anything moves; default 10s.
	DegradedFor Duration `json:"degraded_for,omitempty"`
	// MinCPUDemand is the demand in CPUs below which a guest does not count; default 0.1.
	MinCPUDemand float64 `json:"min_cpu_demand,omitempty"`

	// MinGain is by which share a move must lower the cost of a degraded guest; default 0.1.
	MinGain float64 `json:"min_gain,omitempty"`
	// Horizon is how long a gain is expected to last: what a move costs must
	// be earned within; default 30m.
	Horizon Duration `json:"horizon,omitempty"`
	// MaxNodeCPU is the highest share of a node's CPUs that moves may fill, unless the node
	// has a CPU for each vCPU; default 0.9.
	MaxNodeCPU float64 `json:"max_node_cpu,omitempty"`
	// Cooldown is how long a guest is left alone after a move, doubled with every
	// further move within a day, or within NoReturn if that is longer; default 5m.
	Cooldown Duration `json:"cooldown,omitempty"`
	// NoReturn is how long a guest does not go back to nodes that it left; default 1h.
	NoReturn Duration `json:"no_return,omitempty"`

	// BytesPerRound and GuestsPerRound bound one plan; defaults 64 GiB and 8
	// guests. A guest that is greater than the budget may move as the only one.
	BytesPerRound  topology.Bytes `json:"bytes_per_round,omitempty"`
	GuestsPerRound int            `json:"guests_per_round,omitempty"`
	// BytesPerSecond is what the mover copies where that was not measured; default 1 GiB/s.
	BytesPerSecond topology.Bytes `json:"bytes_per_second,omitempty"`

	// MaxGuestWait is by which share of their runnable time vCPUs may wait
	// longer for CPUs while memory is copied than before; default 0.05.
	MaxGuestWait float64 `json:"max_guest_wait,omitempty"`
	// MaxBandwidth is which share of the slower node's measured memory
	// bandwidth copying takes at most; default 0.25.
	MaxBandwidth float64 `json:"max_bandwidth,omitempty"`
	// Pace is how much is copied in a second at most, in bytes; 0: as the two above allow.
	Pace topology.Bytes `json:"pace,omitempty"`
}

// defaultBalance follows what is in use elsewhere where that is known: numad
// pauses for 5 minutes, ESXi wants 10 % of imbalance.
var defaultBalance = Balance{
	Mode: ModeAuto, Migrate: ModeAuto, Wait: 0.1, Access: 0.1, Traffic: 0.8, Clear: 0.7,
	DegradedFor: Duration(10 * time.Second), MinCPUDemand: 0.1,
	MinGain: 0.1, Horizon: Duration(30 * time.Minute), MaxNodeCPU: 0.9,
	Cooldown: Duration(5 * time.Minute), NoReturn: Duration(time.Hour),
	BytesPerRound: 64 * topology.GiB, GuestsPerRound: 8, BytesPerSecond: topology.GiB,
	MaxGuestWait: 0.05, MaxBandwidth: 0.25,
}

// WithDefaults returns b with its zero fields replaced by the defaults.
func (b Balance) WithDefaults() Balance {
	d := defaultBalance
	b.Mode = cmp.Or(b.Mode, d.Mode)
	b.Migrate = cmp.Or(b.Migrate, d.Migrate)
	b.Wait = cmp.Or(b.Wait, d.Wait)
	b.Access = cmp.Or(b.Access, d.Access)
	b.Traffic = cmp.Or(b.Traffic, d.Traffic)
	b.Clear = cmp.Or(b.Clear, d.Clear)
	b.DegradedFor = cmp.Or(b.DegradedFor, d.DegradedFor)
	b.MinCPUDemand = cmp.Or(b.MinCPUDemand, d.MinCPUDemand)
	b.MinGain = cmp.Or(b.MinGain, d.MinGain)
	b.Horizon = cmp.Or(b.Horizon, d.Horizon)
	b.MaxNodeCPU = cmp.Or(b.MaxNodeCPU, d.MaxNodeCPU)
	b.Cooldown = cmp.Or(b.Cooldown, d.Cooldown)
	b.NoReturn = cmp.Or(b.NoReturn, d.NoReturn)
	b.BytesPerRound = cmp.Or(b.BytesPerRound, d.BytesPerRound)
	b.GuestsPerRound = cmp.Or(b.GuestsPerRound, d.GuestsPerRound)
	b.BytesPerSecond = cmp.Or(b.BytesPerSecond, d.BytesPerSecond)
	b.MaxGuestWait = cmp.Or(b.MaxGuestWait, d.MaxGuestWait)
	b.MaxBandwidth = cmp.Or(b.MaxBandwidth, d.MaxBandwidth)
	return b
}

// ModeOf returns the mode of a guest: its own mode or the default for its kind,
// and never more than the host's.
func (b Balance) ModeOf(name string, ours bool) Mode {
	mode, named := b.Guests[name]
	switch {
	case named:
	case ours:
		mode = ModeAuto
	default:
		mode = ModeAdvise
	}
	return lesser(mode, cmp.Or(b.Mode, ModeAuto))
}

// MigrateModeOf returns the mode of a guest for migrations that a fleet's server plans by itself.
func (b Balance) MigrateModeOf(name string, ours bool) Mode {
	return lesser(b.ModeOf(name, ours), cmp.Or(b.Migrate, ModeAuto))
}

// lesser returns the mode that allows less.
func lesser(a, b Mode) Mode {
	rank := map[Mode]int{ModeOff: 0, ModeAdvise: 1, ModeAuto: 2}
	if rank[b] < rank[a] {
		return b
	}
	return a
}

// CopyRate returns how fast a plan assumes that memory is copied, in bytes a
// second, and the source of that figure in words: the rate measured on the host
// (0: not measured), else BytesPerSecond, and never more than Pace.
func (b Balance) CopyRate(measured topology.Bytes) (rate topology.Bytes, from string) {
	rate, from = b.WithDefaults().BytesPerSecond, "not measured here"
	if measured > 0 {
		rate, from = measured, "measured here"
	}
	if b.Pace > 0 && b.Pace < rate {
		rate, from = b.Pace, "the policy's pace"
	}
	return rate, from
}

// mostMemory bounds how far balancing looks ahead and back. mostTime bounds the
// cooldown, which doubles with every move: doubled 16 times it still fits a
// Duration.
const mostMemory = Duration(100 * 365 * 24 * time.Hour)

func (b Balance) check(c *checker) {
	oneOf(c, "balance.mode", b.Mode)
	oneOf(c, "balance.migrate", b.Migrate)
	for _, name := range slices.Sorted(maps.Keys(b.Guests)) {
		field, mode := strictyaml.Join("balance.guests", name), b.Guests[name]
		if mode == "" {
			c.fail(field, "empty", "%s", strings.Join(mode.Words(), ", "))
		}
		oneOf(c, field, mode)
	}
	for _, f := range []struct {
		name        string
		value, most float64
	}{
		{"wait", b.Wait, 1}, {"access", b.Access, 100}, {"traffic", b.Traffic, 100}, {"clear", b.Clear, 1},
		{"min_cpu_demand", b.MinCPUDemand, 1e6}, {"min_gain", b.MinGain, 1}, {"max_node_cpu", b.MaxNodeCPU, 1},
		{"guests_per_round", float64(b.GuestsPerRound), 1e6},
		{"max_guest_wait", b.MaxGuestWait, 1}, {"max_bandwidth", b.MaxBandwidth, 1},
	} {
		c.number("balance."+f.name, f.value, 0, f.most)
	}
	c.time("balance.degraded_for", b.DegradedFor, mostTime)
	c.time("balance.horizon", b.Horizon, mostMemory)
	c.time("balance.cooldown", b.Cooldown, mostTime)
	c.time("balance.no_return", b.NoReturn, mostMemory)
}

// Duration is a time.Duration that is written as people write it: "90s", "1h30m".
type Duration time.Duration

// String gives the duration as Go writes it.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "90s".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("write it like \"90s\" or \"5m\"")
	}
	*d = Duration(v)
	return nil
}
