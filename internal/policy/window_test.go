package policy

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse("Mon 2006-01-02 15:04:05", text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWindowContains(t *testing.T) {
	for _, c := range []struct {
		window, at string
		in         bool
	}{
		{"02:00-05:00", "Sat 2026-11-21 02:00:00", true},
		{"02:00-05:00", "Sat 2026-11-21 04:59:59", true},
		{"02:00-05:00", "Sat 2026-11-21 05:00:00", false},
		{"02:00-05:00", "Sat 2026-11-21 01:59:59", false},
		{"22:00-04:00", "Sat 2026-11-21 23:00:00", true},
		{"22:00-04:00", "Sun 2026-11-22 03:00:00", true},
		{"22:00-04:00", "Sun 2026-11-22 04:00:00", false},
		{"Sat 22:00-04:00", "Sun 2026-11-22 03:00:00", true},
		{"Sat 22:00-04:00", "Sat 2026-11-21 03:00:00", false},
		{"Mon-Fri 08:00-18:00", "Sat 2026-11-21 12:00:00", false},
		{"Fri-Mon,Wed 00:00-24:00", "Sun 2026-11-22 12:00:00", true},
		{"Fri-Mon,Wed 00:00-24:00", "Tue 2026-11-24 12:00:00", false},
		{"saturday 20:00-24:00", "Sat 2026-11-21 23:59:59", true},
		{"06:00-06:00", "Sat 2026-11-21 05:00:00", true}, // the whole day
	} {
		w, err := ParseWindow(c.window)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Contains(at(t, c.at)); got != c.in {
			t.Errorf("%s at %s: %v", c.window, c.at, got)
		}
	}
	for _, bad := range []string{"", "02:00", "2-5", "25:00-03:00", "Mo 02:00-03:00", "Mon- 02:00-03:00", "24:00-03:00", "Mon,Xyz 01:00-02:00", "01:00-02:00 Mon"} {
		if w, err := ParseWindow(bad); err == nil {
			t.Errorf("%q was read as %v", bad, w)
		}
	}
}

func TestWindowIsReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Window{from: time.Duration(rapid.IntRange(0, 1439).Draw(t, "from")) * time.Minute, to: time.Duration(rapid.IntRange(0, 1440).Draw(t, "to")) * time.Minute}
		w.days[rapid.IntRange(0, 6).Draw(t, "day")] = true
		w.days[rapid.IntRange(0, 6).Draw(t, "other day")] = true
		text, _ := json.Marshal(w)
		var back Window
		if err := json.Unmarshal(text, &back); err != nil || back != w {
			t.Fatalf("%s became %v: %v", text, back, err)
		}
	})
}

func TestWithoutWindowsItIsAlwaysOpen(t *testing.T) {
	if !(Balance{}).Open(time.Time{}) {
		t.Error("closed")
	}
	w, _ := ParseWindow("02:00-05:00")
	if (Balance{Windows: []Window{w}}).Open(at(t, "Sat 2026-11-21 12:00:00")) {
		t.Error("open at noon")
	}
}

// The policy in the guide is one, with the defaults that it names.
func TestTheGuidesPolicy(t *testing.T) {
	guide, err := os.ReadFile("../../docs/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(guide), "    balance:\n")
	var lines []string
	for line := range strings.Lines("    balance:\n" + text) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		lines = append(lines, strings.TrimPrefix(line, "    "))
	}
	p, err := Parse(strings.NewReader(strings.Join(lines, "")))
	if err != nil {
		t.Fatalf("%v in\n%s", err, strings.Join(lines, ""))
	}
	if p.Balance.Guests["batch7"] != ModeAuto || len(p.Balance.Windows) != 2 {
		t.Errorf("%+v", p.Balance)
	}
	plain := Policy{}.WithDefaults()
	b := p.WithDefaults().Balance
	b.Guests, b.Windows = nil, nil
	if diff := cmp.Diff(plain.Balance, b); diff != "" {
		t.Errorf("the guide names other defaults (-default +guide):\n%s", diff)
	}
	if diff := cmp.Diff(plain.Movers, p.Movers); diff != "" {
		t.Errorf("the guide names other defaults (-default +guide):\n%s", diff)
	}
}
