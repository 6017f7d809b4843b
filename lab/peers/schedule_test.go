package peers

import (
	"strings"
	"testing"
)

// turns makes all runs of managers whose names are single letters; those in
// failing fail every time, that of once the first time.
func turns(names, failing, once string, repeats int) string {
	var managers []Manager
	for _, n := range names {
		managers = append(managers, Manager{Name: string(n)})
	}
	var runs []Run
	var order strings.Builder
	for {
		m, ok := Next(runs, managers, repeats)
		if !ok {
			return order.String()
		}
		r := Run{Manager: m.Name}
		if strings.Contains(failing, m.Name) || strings.Contains(once, m.Name) {
			r.Failed = "the test makes it fail"
			once = strings.ReplaceAll(once, m.Name, "")
		}
		runs = append(runs, r)
		order.WriteString(m.Name)
	}
}

func TestManagersTakeTurns(t *testing.T) {
	for _, c := range []struct {
		name, managers, failing, once string
		repeats                       int
		want                          string
	}{
		{"all valid", "abc", "", "", 3, "abcabcabc"},
		{"one fails once and is repeated", "abc", "", "b", 2, "abcabcb"},
		{"one always fails: tried again as often as there are repeats", "abc", "b", "", 2, "abcabcbb"},
		{"no runs wanted", "abc", "", "", 0, ""},
		{"no manager", "", "", "", 3, ""},
	} {
		if got := turns(c.managers, c.failing, c.once, c.repeats); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRunsInAFileCount(t *testing.T) {
	managers := []Manager{{Name: "a"}, {Name: "b"}}
	if m, ok := Next([]Run{{Manager: "a"}, {Manager: "x"}}, managers, 1); !ok || m.Name != "b" {
		t.Errorf("next is %q, %v; want b, whose run is missing", m.Name, ok)
	}
}
