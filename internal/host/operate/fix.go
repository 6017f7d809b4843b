package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// Settings are the settings of a host that a remedy changes.
type Settings interface {
	// ReadSetting returns a setting below /proc/sys or /sys; of a setting that
	// lists its choices ("always [madvise] never"), the chosen one.
	ReadSetting(path string) (string, error)
	// WriteSetting writes a setting and verifies it by reading it back.
	WriteSetting(path, value string) error
	// ExcludeFromNumad makes a running numad ignore a process.
	ExcludeFromNumad(ctx context.Context, pid int) error
}

// FixRequest is one remedy to carry out.
type FixRequest struct {
	Remedy plan.Remedy
	// Held says that the caller restores the former value when it ends.
	Held bool

	Undoes string // ID of the effect that it reverts
}

// Fixed is the result of Fix.
type Fixed struct {
	What   string // the effect, in one line
	Former string // former value of the setting
	// Left is the value that RestoreSetting left in place, because the setting no
	// longer had the value that Numavisor gave it. Empty: it was restored.
	Left  string
	Bound *Bound // of BindGuest
}

// Fix carries out a remedy: one that the doctor proposes, or the daemon's
// response to a competitor. It records a change of a setting in the journal,
// with the former value, before making it. The error is ErrNotBegun if nothing
// was changed. Numad forgets its exclusions when it ends, so ExcludeFromNumad
// is not in the journal. The end of ctx does not interrupt a setting in
// progress: KSM that is stopped halfway through unmerging would stay stopped.
func (h *Host) Fix(ctx context.Context, r FixRequest) (Fixed, error) {
	switch a := r.Remedy; a.Kind {
	case plan.BindGuest:
		return h.fixGuest(ctx, a)
	case plan.WriteSetting:
		return h.changeSetting(r)
	case plan.KSMWithinNodes:
		r.Remedy.Path, r.Remedy.From, r.Remedy.Value = plan.KSMAcrossNodesPath, "1", "0"
		return h.changeSetting(r)
	case plan.RestoreSetting:
		return h.restoreSetting(a)
	case plan.ExcludeFromNumad:
		what := fmt.Sprintf("numad excludes VM %s (numad -x %d)", a.Guest, a.PID)
		return Fixed{What: what}, h.Settings.ExcludeFromNumad(ctx, a.PID)
	}
	return Fixed{}, fmt.Errorf("%w: unknown kind of remedy %q", ErrNotBegun, r.Remedy.Kind)
}

func (h *Host) fixGuest(ctx context.Context, a plan.Remedy) (Fixed, error) {
	b, err := h.Bind(ctx, BindRequest{Name: a.Guest, Why: a.Why})
	if err == nil && !b.Complete() {
		err = errors.New(strings.Join(b.Shortfalls(), "; "))
	}
	f := Fixed{Bound: &b}
	if err == nil {
		f.What = b.Truth.Verdict()
	}
	return f, err
}

// changeSetting records and makes a change of a setting.
func (h *Host) changeSetting(r FixRequest) (Fixed, error) {
	a := r.Remedy
	former, err := h.Settings.ReadSetting(a.Path)
	if err != nil {
		return Fixed{}, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	if a.From != "" && former != a.From {
		return Fixed{
			Former: former,
		}, fmt.Errorf("%w: %s was %s when this was decided, and is %s now", ErrNotBegun, a.Path, a.From, former)
	}
	f := Fixed{Former: former, What: fmt.Sprintf("%s: was %s, is %s", a.Path, former, a.Value)}
	e := journal.Entry{Effect: journal.EffectSetting, Undoes: r.Undoes, Why: a.Why,
		What:    fmt.Sprintf("%s: from %s to %s", a.Path, former, a.Value),
		Setting: &journal.SettingChange{Path: a.Path, Former: former, Value: a.Value, Held: r.Held}}
	return f, h.writeSetting(e)
}

// restoreSetting restores a former value unless the setting was changed since.
// The journal already has the beginning of the change that it reverts, so it
// records only the end: the value is restored even if the journal cannot be
// written, and a caller that retries does not fill the journal with its
// failures.
func (h *Host) restoreSetting(a plan.Remedy) (Fixed, error) {
	now, err := h.Settings.ReadSetting(a.Path)
	if err != nil {
		return Fixed{}, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	f := Fixed{Former: now, What: fmt.Sprintf("%s: back from %s to %s", a.Path, now, a.Value)}
	change := journal.SettingChange{Path: a.Path, Former: now, Value: a.Value}
	if now == a.From {
		err = h.Settings.WriteSetting(a.Path, a.Value)
	} else {
		f.Left, change.Value = now, now
		f.What = fmt.Sprintf("%s: left at %s, not restored to %s: it is not %s, as Numavisor had set "+
			"it", a.Path, now, a.Value, a.From)
	}
	if err != nil {
		return f, err
	}
	return f, h.append(
		journal.Entry{At: h.Clock().UTC(), Kind: journal.EffectSetting.Done(), ID: NewEffectID(h.Clock()),
			Effect: journal.EffectSetting, What: f.What, Why: a.Why, By: h.By, Setting: &change},
	)
}

// writeSetting makes the change of a setting that an entry describes.
func (h *Host) writeSetting(e journal.Entry) error {
	x, err := h.begin(e)
	if err != nil {
		return err
	}
	err = h.Settings.WriteSetting(e.Setting.Path, e.Setting.Value)
	return errors.Join(err, x.end(err, nil))
}
