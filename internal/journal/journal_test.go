package journal

import (
	"slices"
	"testing"
)

// What holds is named until it is ended, in the order of the journal.
func TestLasting(t *testing.T) {
	began, undoing, done := Entry{
		Kind: MoveBegan,
		ID:   "m",
	}, Entry{
		Kind: MoveUndoing,
		ID:   "m",
	}, Entry{
		Kind: MoveUndone,
		ID:   "m",
	}
	other := Entry{Kind: MoveBegan, ID: "n"}
	setting := func(kind func(Effect) Kind, id string, held bool) Entry {
		return Entry{
			Kind:    kind(EffectSetting),
			ID:      id,
			Effect:  EffectSetting,
			Setting: &SettingChange{Path: "p", Former: "1", Value: "0", Held: held},
		}
	}
	about, off, back := setting(Effect.Began, "s", true), setting(Effect.Done, "s",
		true), setting(Effect.Done, "t", false)
	bindBegan, bindFailed := Entry{
		Kind:   EffectBind.Began(),
		ID:     "b",
		Effect: EffectBind,
	}, Entry{
		Kind:   EffectBind.Failed(),
		ID:     "b",
		Effect: EffectBind,
	}
	once := Entry{Kind: Setting, What: "for good"}
	paused, longer, resumed := Entry{Kind: Paused}, Entry{Kind: Paused, Why: "longer"}, Entry{Kind: Resumed}
	step, began2 := Entry{Kind: MoveStep, ID: "m"}, Entry{Kind: MoveBegan, ID: "m", What: "named so again"}
	for _, c := range []struct {
		name          string
		entries, want []Entry
	}{
		{"nothing", nil, nil},
		{"a move in progress", []Entry{began, step}, []Entry{began}},
		{"one of two", []Entry{began, other, undoing, done}, []Entry{other}},
		{"two, one being undone", []Entry{began, other, undoing}, []Entry{began, other, undoing}},
		{"undone again and again", []Entry{began, undoing, step, undoing}, []Entry{began, undoing}},
		{"carried along twice", []Entry{began, began, done}, nil},
		{"a name used again", []Entry{began, undoing, done, began2}, []Entry{began2}},
		{"a setting", []Entry{off, once}, []Entry{off}},
		{"a setting in progress", []Entry{about}, []Entry{about}},
		{"a setting restored", []Entry{about, off, back}, nil},
		{"a setting that could not be changed", []Entry{about, setting(Effect.Failed, "s", true)}, nil},
		{"a setting whose change was interrupted", []Entry{about, setting(Effect.Interrupted, "s", true)},
			[]Entry{about}},
		{"a setting that could not be restored", []Entry{off, setting(Effect.Began, "t", false),
			setting(Effect.Failed, "t", false)}, []Entry{off}},
		{"a setting that nobody restores", []Entry{setting(Effect.Began, "t", false), back}, nil},
		{"a bind without an end", []Entry{bindBegan, step}, []Entry{bindBegan}},
		{"a bind that failed", []Entry{bindBegan, bindFailed}, nil},
		{"a pause", []Entry{paused, longer, off}, []Entry{longer, off}},
		{"a pause that is over", []Entry{paused, resumed}, nil},
	} {
		same := func(a, b Entry) bool { return a.Kind == b.Kind && a.ID == b.ID && a.What == b.What && a.Why == b.Why }
		if got := Lasting(c.entries); !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if open := InterruptedMoves(c.entries); c.name == "carried along twice" && len(open) > 0 {
			t.Errorf("%s: interrupted: %+v", c.name, open)
		}
	}
}

func TestHeldFormer(t *testing.T) {
	entry := func(kind Kind, former string, held bool) Entry {
		return Entry{
			Kind:    kind,
			Effect:  EffectSetting,
			Setting: &SettingChange{Path: "p", Former: former, Value: "0", Held: held},
		}
	}
	began, done := EffectSetting.Began(), EffectSetting.Done()
	for _, c := range []struct {
		name    string
		entries []Entry
		want    string
	}{
		{"nothing", nil, ""},
		{"begun", []Entry{entry(began, "1", true)}, "1"},
		{"done", []Entry{entry(began, "1", true), entry(done, "1", true)}, "1"},
		{"failed", []Entry{entry(began, "1", true), entry(EffectSetting.Failed(), "1", true)}, ""},
		{"restored", []Entry{entry(done, "1", true), entry(done, "0", false)}, ""},
		{"not yet restored", []Entry{entry(done, "1", true), entry(began, "0", false)}, "1"},
		{"changed by an operator", []Entry{entry(done, "3", true), entry(done, "2", false)}, ""},
		{"changed again", []Entry{entry(done, "1", true), entry(done, "0", false), entry(done, "3", true)}, "3"},
	} {
		if got := HeldFormer(c.entries, "p"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if got := HeldFormer(c.entries, "other"); got != "" {
			t.Errorf("%s: another setting is held at %q", c.name, got)
		}
	}
}

func TestStoredBinding(t *testing.T) {
	bind := func(k Kind, digest string, guests ...string) Entry {
		return Entry{Kind: k, Effect: EffectBind, Guests: guests, StoredBindings: map[string]string{"a": digest}}
	}
	done := EffectBind.Done()
	interrupted := Entry{Kind: EffectBind.Interrupted(), Effect: EffectBind, Guests: []string{"a"}}
	moved := Entry{Kind: MoveUndone, Guests: []string{"b", "a"}, StoredBindings: map[string]string{"a": "3"}}
	setting := Entry{Kind: EffectSetting.Done(), Effect: EffectSetting, Guests: []string{"a"}}
	for name, c := range map[string]struct {
		entries []Entry
		want    string
	}{
		"nothing":           {nil, ""},
		"the last one":      {[]Entry{bind(done, "1", "a"), bind(done, "2", "a")}, "2"},
		"another guest's":   {[]Entry{bind(done, "1", "a"), bind(done, "2", "b")}, "1"},
		"not yet ended":     {[]Entry{bind(done, "1", "a"), bind(EffectBind.Began(), "2", "a")}, "1"},
		"interrupted":       {[]Entry{bind(done, "1", "a"), interrupted}, ""},
		"of a move":         {[]Entry{moved}, "3"},
		"a setting between": {[]Entry{bind(done, "1", "a"), setting}, "1"},
	} {
		if got := StoredBinding(c.entries, "a"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
