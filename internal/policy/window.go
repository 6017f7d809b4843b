package policy

import (
	"fmt"
	"strings"
	"time"
)

// Window is a time of the week in which moves may be made, in the host's own
// time. It is written as people write it: "02:00-05:00" for every day,
// "Sat,Sun 22:00-04:00" for one that runs past midnight.
type Window struct {
	days     [7]bool // by time.Weekday of its begin
	from, to time.Duration
}

const day = 24 * time.Hour

// Contains reports whether t is in the window. In a night in which clocks
// change, the hours on the clock count.
func (w Window) Contains(t time.Time) bool {
	clock := time.Duration(t.Hour())*time.Hour + time.Duration(
		t.Minute())*time.Minute // windows begin and end with a minute
	today, yesterday := t.Weekday(), (t.Weekday()+6)%7
	if w.from < w.to {
		return w.days[today] && clock >= w.from && clock < w.to
	}
	return w.days[today] && clock >= w.from || w.days[yesterday] && clock < w.to
}

// ParseWindow reads "02:00-05:00" or "Mon-Fri,Sun 22:00-04:00". A window whose
// end is not after its begin ends on the next day.
func ParseWindow(text string) (Window, error) {
	wrong := func() (Window, error) {
		return Window{}, fmt.Errorf("window %q: write it like \"02:00-05:00\" or \"Sat,Sun 22:00-04:00\"", text)
	}
	days, hours, both := strings.Cut(strings.TrimSpace(text), " ")
	if !both {
		days, hours = "Sun-Sat", days
	}
	from, to, ok := strings.Cut(strings.TrimSpace(hours), "-")
	var w Window
	var err1, err2 error
	w.from, err1 = clockTime(from)
	w.to, err2 = clockTime(to)
	if !ok || err1 != nil || err2 != nil || w.from == day || !w.addDays(days) {
		return wrong()
	}
	return w, nil
}

// clockTime reads "02:00"; "24:00" is the end of the day.
func clockTime(text string) (time.Duration, error) {
	if text == "24:00" {
		return day, nil
	}
	t, err := time.Parse("15:04", text)
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, err
}

// addDays reads "Mon-Fri,Sun".
func (w *Window) addDays(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, ok := weekday(first)
		to := from
		if isRange && ok {
			to, ok = weekday(last)
		}
		if !ok {
			return false
		}
		for d := from; ; d = (d + 1) % 7 {
			w.days[d] = true
			if d == to {
				break
			}
		}
	}
	return true
}

func weekday(text string) (time.Weekday, bool) {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if len(text) >= 3 && strings.HasPrefix(strings.ToLower(d.String()), strings.ToLower(text)) {
			return d, true
		}
	}
	return 0, false
}

// String gives the window as it is written.
func (w Window) String() string {
	var days []string
	for d, in := range w.days {
		if in {
			days = append(days, time.Weekday(d).String()[:3])
		}
	}
	hours := clockText(w.from) + "-" + clockText(w.to)
	if len(days) == 7 {
		return hours
	}
	return strings.Join(days, ",") + " " + hours
}

func clockText(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
}

// MarshalText writes the window as String does.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads what ParseWindow reads.
func (w *Window) UnmarshalText(text []byte) error {
	parsed, err := ParseWindow(string(text))
	*w = parsed
	return err
}

// Open reports whether moves may be made at t: always without windows.
func (b Balance) Open(t time.Time) bool {
	for _, w := range b.Windows {
		if w.Contains(t) {
			return true
		}
	}
	return len(b.Windows) == 0
}
