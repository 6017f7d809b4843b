package journal

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Effect names a change other than a move that a command or the daemon makes.
// Its beginning is in the journal before anything is touched, with the former
// values; once it is over, one entry with the same ID says how it ended. A move
// has kinds of its own, because a restart resumes it.
type Effect string

// Effects.
const (
	EffectBind    Effect = "bind"    // of a running guest or process
	EffectCreate  Effect = "create"  // of a guest
	EffectDelete  Effect = "delete"  // of a guest
	EffectStart   Effect = "start"   // of a guest that exists
	EffectStop    Effect = "stop"    // of a guest
	EffectResize  Effect = "resize"  // of a guest that does not run
	EffectRun     Effect = "run"     // of a command that starts bound
	EffectSetting Effect = "setting" // of the kernel
	EffectPools   Effect = "pools"   // of Xen's CPU pools
	// The two parts of a live migration, each on its own host. A restart resumes them.
	EffectMigrateOut Effect = "migrate-out"
	EffectMigrateIn  Effect = "migrate-in"
)

// Began is the kind of the entry that is written before anything is touched.
func (e Effect) Began() Kind { return Kind(e) + "-began" }

// Done is the kind of the entry of an effect that was carried out and verified.
func (e Effect) Done() Kind { return Kind(e) + "-done" }

// Partial is the kind of the entry of an effect that was carried out in part.
func (e Effect) Partial() Kind { return Kind(e) + "-partial" }

// Failed is the kind of the entry of an effect that failed.
func (e Effect) Failed() Kind { return Kind(e) + "-failed" }

// Interrupted is the kind of the entry that closes an effect whose process ended first.
func (e Effect) Interrupted() Kind { return Kind(e) + "-interrupted" }

// Process identifies the process that makes an effect.
type Process struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"` // field 22 of /proc/PID/stat
}

// SettingChange is a change of one kernel setting.
type SettingChange struct {
	Path   string `json:"path"` // below /proc/sys or /sys
	Former string `json:"former"`
	Value  string `json:"value"`
	// Held says that the daemon restores Former when it ends or the policy changes.
	Held bool `json:"held,omitempty"`
}

// Begins reports whether the entry begins an effect other than a move.
func (e Entry) Begins() bool { return e.Effect != "" && e.Kind == e.Effect.Began() }

// Closes reports whether the entry ends an effect other than a move.
func (e Entry) Closes() bool { return e.Effect != "" && e.Kind != e.Effect.Began() }

// Takes reports whether the effect of the entry was carried out, at least in part.
func (e Entry) Takes() bool {
	return e.Effect != "" && (e.Kind == e.Effect.Done() || e.Kind == e.Effect.Partial())
}

// Actors other than a user's command.
const (
	ByBalancer = "balancer"
	ByDaemon   = "daemon"
	ByRestart  = "restart"
)

// ByUser reports whether a user requested the entry's action.
func (e Entry) ByUser() bool {
	return e.By != "" && e.By != ByBalancer && e.By != ByDaemon && e.By != ByRestart
}

// Open returns the beginnings of effects, other than moves, that have no end, oldest first.
func Open(entries []Entry) []Entry {
	var open []Entry
	for _, e := range entries {
		switch {
		case e.Begins():
			open = append(open, e)
		case e.Closes():
			open = slices.DeleteFunc(open, func(o Entry) bool { return o.ID == e.ID })
		}
	}
	return open
}

// OpenMigrations returns the beginnings of migrations that have no end, oldest first.
func OpenMigrations(entries []Entry) []Entry {
	return slices.DeleteFunc(Open(entries), func(e Entry) bool { return e.Migration == nil })
}

// RecreateRate returns how fast the last guests were made again on this host, in bytes a second; 0: none was. A bind
// has a copying time only if it made its guest again.
func RecreateRate(entries []Entry) topology.Bytes {
	const last = 4
	var bytes topology.Bytes
	var took time.Duration
	n := 0
	for _, e := range slices.Backward(entries) {
		if e.Effect == EffectBind && e.Takes() && e.Copied > 0 && e.Moved > 0 && n < last {
			bytes, took, n = bytes+e.Moved, took+e.Copied, n+1
		}
	}
	if took <= 0 {
		return 0
	}
	return topology.Bytes(float64(bytes) / took.Seconds())
}

// StoredBinding returns the digest of the binding that the last bind or move
// left in a guest's stored configuration; empty: not known, as after an
// interrupted one.
func StoredBinding(entries []Entry, guest string) string {
	for _, e := range slices.Backward(entries) {
		if (e.Ends() || e.Closes() && e.Effect == EffectBind) && slices.Contains(e.Guests, guest) {
			return e.StoredBindings[guest]
		}
	}
	return ""
}

// HeldFormer returns the value that the daemon must restore for a setting, as
// of the last entry; empty: none.
func HeldFormer(entries []Entry, path string) string { return Held(entries, path).Former }

// Held returns the change of a setting that the daemon must restore, as of the
// last entry; the zero value: none.
func Held(entries []Entry, path string) SettingChange {
	held := SettingChange{}
	for _, e := range entries {
		held = e.held(path, held)
	}
	return held
}

// held returns the change to restore for a setting after the entry, and before
// it.
func (e Entry) held(path string, before SettingChange) SettingChange {
	s := e.Setting
	switch {
	case s == nil || s.Path != path:
		return before
	case s.Held && (e.Begins() || e.Takes()):
		return *s
	case s.Held && e.Kind == e.Effect.Failed(): // never changed
		return SettingChange{}
	case !s.Held && e.Takes(): // restored, or changed by an operator since
		return SettingChange{}
	}
	return before
}
