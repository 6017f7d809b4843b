package journal

import (
	"slices"
	"testing"
)

// What holds is named until it is ended, in the order of the journal.
func TestLasting(t *testing.T) {
	began, undoing, done := Entry{Kind: MoveBegan, ID: "m"}, Entry{Kind: MoveUndoing, ID: "m"}, Entry{Kind: MoveUndone, ID: "m"}
	other := Entry{Kind: MoveBegan, ID: "n"}
	off, back := Entry{Kind: Setting, ID: "s", Former: "1"}, Entry{Kind: Setting, ID: "s"}
	once := Entry{Kind: Setting, What: "for good"}
	paused, longer, resumed := Entry{Kind: Paused}, Entry{Kind: Paused, Why: "longer"}, Entry{Kind: Resumed}
	step, began2 := Entry{Kind: MoveStep, ID: "m"}, Entry{Kind: MoveBegan, ID: "m", What: "named so again"}
	for _, c := range []struct {
		name          string
		entries, want []Entry
	}{
		{"nothing", nil, nil},
		{"a move on its way", []Entry{began, step}, []Entry{began}},
		{"one of two", []Entry{began, other, undoing, done}, []Entry{other}},
		{"two, one being undone", []Entry{began, other, undoing}, []Entry{began, other, undoing}},
		{"undone again and again", []Entry{began, undoing, step, undoing}, []Entry{began, undoing}},
		{"carried along twice", []Entry{began, began, done}, nil},
		{"a name used again", []Entry{began, undoing, done, began2}, []Entry{began2}},
		{"a setting", []Entry{off, once}, []Entry{off}},
		{"a setting given back", []Entry{off, back}, nil},
		{"a pause", []Entry{paused, longer, off}, []Entry{longer, off}},
		{"a pause that is over", []Entry{paused, resumed}, nil},
	} {
		same := func(a, b Entry) bool { return a.Kind == b.Kind && a.ID == b.ID && a.What == b.What && a.Why == b.Why }
		if got := Lasting(c.entries); !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if open := CutShort(c.entries); c.name == "carried along twice" && len(open) > 0 {
			t.Errorf("%s: cut short: %+v", c.name, open)
		}
	}
}
