package policy

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

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

func TestWindow_Contains(t *testing.T) {
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
		{"22:30-06:15", "Sat 2026-11-21 22:29:59", false},
		{"22:30-06:15", "Sat 2026-11-21 22:30:00", true},
		{"22:30-06:15", "Sun 2026-11-22 06:14:59", true},
		{"22:30-06:15", "Sun 2026-11-22 06:15:00", false},
		{"01:10-01:20", "Sat 2026-11-21 01:09:59", false},
		{"01:10-01:20", "Sat 2026-11-21 01:10:00", true},
		{"01:10-01:20", "Sat 2026-11-21 01:19:59", true},
		{"01:10-01:20", "Sat 2026-11-21 01:20:00", false},
	} {
		w, err := ParseWindow(c.window)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Contains(at(t, c.at)); got != c.in {
			t.Errorf("%s contains %s: %v, want %v", c.window, c.at, got, c.in)
		}
	}
}

// Contains agrees with counting the minutes of the week, one by one.
func TestWindow_ContainsAgainstMinutesOfTheWeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.IntRange(0, 6).Draw(t, "day")
		from, length := rapid.IntRange(0, 1439).Draw(t, "from"), rapid.IntRange(1, 1440).Draw(t, "length")
		to := (from + length) % 1440
		w, err := ParseWindow(
			fmt.Sprintf("%s %02d:%02d-%02d:%02d", time.Weekday(begin).String()[:3], from/60, from%60, to/60, to%60))
		if err != nil {
			t.Fatal(err)
		}
		open := map[int]bool{} // by minute of the week
		for i := range length {
			open[(begin*1440+from+i)%(7*1440)] = true
		}
		sunday := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
		for _, minute := range []int{begin*1440 + from, begin*1440 + from + length, rapid.IntRange(0, 7*1440-1).Draw(t,
			"minute")} {
			for _, at := range []int{minute - 1, minute, minute + 1} {
				at = (at + 7*1440) % (7 * 1440)
				second := time.Duration(rapid.IntRange(0, 59).Draw(t, "second")) * time.Second
				when := sunday.Add(time.Duration(at)*time.Minute + second)
				if got := w.Contains(when); got != open[at] {
					t.Fatalf("%v contains %s: %v, want %v", w, when.Format("Mon 15:04:05"), got, open[at])
				}
			}
		}
	})
}

func TestWindow_String(t *testing.T) {
	for given, want := range map[string]string{
		"02:00-05:00":             "02:00-05:00",
		"Sun-Sat 02:05-24:00":     "02:05-24:00",
		"saturday,Sun 22:30-4:15": "Sun,Sat 22:30-04:15",
	} {
		w, err := ParseWindow(given)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.String(); got != want {
			t.Errorf("%q is written %q, want %q", given, got, want)
		}
	}
}

func TestParseWindow_Refuses(t *testing.T) {
	for _, bad := range []string{"", "02:00", "2-5", "25:00-03:00", "Mo 02:00-03:00", "Mon- 02:00-03:00", "24:00-03:00",
		"Mon,Xyz 01:00-02:00", "01:00-02:00 Mon"} {
		if w, err := ParseWindow(bad); err == nil {
			t.Errorf("%q was read as %v", bad, w)
		}
	}
}

func TestWindow_IsReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Window{
			from: time.Duration(rapid.IntRange(0, 1439).Draw(t, "from")) * time.Minute,
			to:   time.Duration(rapid.IntRange(0, 1440).Draw(t, "to")) * time.Minute,
		}
		w.days[rapid.IntRange(0, 6).Draw(t, "day")] = true
		w.days[rapid.IntRange(0, 6).Draw(t, "other day")] = true
		text, _ := json.Marshal(w)
		var back Window
		if err := json.Unmarshal(text, &back); err != nil || back != w {
			t.Fatalf("%s became %v: %v", text, back, err)
		}
	})
}

func TestBalance_Open(t *testing.T) {
	if !(Balance{}).Open(time.Time{}) {
		t.Error("closed without windows")
	}
	var b Balance
	for _, text := range []string{"02:00-05:00", "Sat 20:00-21:00"} {
		w, err := ParseWindow(text)
		if err != nil {
			t.Fatal(err)
		}
		b.Windows = append(b.Windows, w)
	}
	for when, want := range map[string]bool{
		"Sat 2026-11-21 03:00:00": true,
		"Sat 2026-11-21 12:00:00": false,
		"Sat 2026-11-21 20:30:00": true,
		"Fri 2026-11-20 20:30:00": false,
	} {
		if got := b.Open(at(t, when)); got != want {
			t.Errorf("open on %s: %v, want %v", when, got, want)
		}
	}
}
