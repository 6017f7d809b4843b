package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse_Balance(t *testing.T) {
	p, err := Parse(strings.NewReader("balance: {mode: advise, guests: {db: 'off'}, degraded_for: 90s, min_gain: 0.2}"))
	if err != nil {
		t.Fatal(err)
	}
	want := Balance{
		Mode: ModeAdvise, Guests: map[string]Mode{"db": ModeOff}, DegradedFor: Duration(90 * time.Second), MinGain: 0.2,
	}
	if diff := cmp.Diff(want, p.Balance); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"balance: {mode: always}":         "balance.mode",
		"balance: {guests: {db: always}}": "balance.guests.db",
		"balance: {guests: {db: ''}}":     "balance.guests.db",
		"balance: {min_gain: -1}":         "balance.min_gain",
		"balance: {cooldown: 5}":          "90s",
		"balance: {cooldown: soon}":       "soon",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error naming %q, got %v", text, want, err)
		}
	}
}

func TestBalance_ModeOfGuestNeverExceedsTheHosts(t *testing.T) {
	named := map[string]Mode{"own": ModeAuto, "not": ModeOff}
	for _, c := range []struct {
		host    Mode
		guest   string
		managed bool
		want    Mode
	}{
		{"", "ours", true, ModeAuto},
		{"", "theirs", false, ModeAdvise},
		{"", "own", false, ModeAuto},
		{"", "not", true, ModeOff},
		{ModeAdvise, "own", true, ModeAdvise},
		{ModeOff, "own", true, ModeOff},
	} {
		if got := (Balance{Mode: c.host, Guests: named}).ModeOf(c.guest, c.managed); got != c.want {
			t.Errorf("host %q, guest %s: %q, want %q", c.host, c.guest, got, c.want)
		}
	}
}
