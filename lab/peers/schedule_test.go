package peers

import (
	"strings"
	"testing"
	"time"
)

// turns makes all runs of managers whose names are single letters; those in
// failing fail every time, that of once the first time.
func turns(layouts, names, failing, once string, rounds int) string {
	var managers []Manager
	for _, n := range names {
		managers = append(managers, Manager{Name: string(n)})
	}
	var where []Layout
	for _, l := range layouts {
		where = append(where, Layout{Name: string(l)})
	}
	var runs []Run
	var order strings.Builder
	for {
		tasks := Tasks(runs, where, managers, rounds)
		if len(tasks) == 0 {
			return order.String()
		}
		next := tasks[0]
		r := Run{Layout: next.Layout.Name, Manager: next.Manager.Name, Round: next.Round}
		if strings.Contains(failing, r.Manager) || strings.Contains(once, r.Manager) {
			r.Failed = "the test makes it fail"
			once = strings.ReplaceAll(once, r.Manager, "")
		}
		runs = append(runs, r)
		order.WriteString(r.Layout + r.Manager + " ")
	}
}

func TestManagersTakeTurns(t *testing.T) {
	for _, c := range []struct {
		name, layouts, managers, failing, once string
		rounds                                 int
		want                                   string
	}{
		{"all valid", "X", "abc", "", "", 3, "Xa Xb Xc Xa Xb Xc Xa Xb Xc "},
		{"layouts follow each other in each round", "XY", "ab", "", "", 2, "Xa Xb Ya Yb Xa Xb Ya Yb "},
		{"one fails once and is repeated", "X", "abc", "", "b", 2, "Xa Xb Xc Xa Xb Xc Xb "},
		{"one always fails: tried again as often as there are rounds", "X", "abc", "b", "", 2,
			"Xa Xb Xc Xa Xb Xc Xb Xb "},
		{"no rounds wanted", "X", "abc", "", "", 0, ""},
		{"no manager", "X", "", "", "", 3, ""},
	} {
		if got := turns(c.layouts, c.managers, c.failing, c.once, c.rounds); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRunsInAFileCount(t *testing.T) {
	managers, layouts := []Manager{{Name: "a"}, {Name: "b"}}, []Layout{{Name: "X"}, {Name: "Y"}}
	done := []Run{{Layout: "X", Manager: "a", Round: 1}, {Layout: "X", Manager: "x", Round: 1},
		{Layout: "Z", Manager: "b", Round: 1}}
	tasks := Tasks(done, layouts, managers, 1)
	if len(tasks) != 3 || tasks[0].Layout.Name != "X" || tasks[0].Manager.Name != "b" || tasks[0].Round != 1 {
		t.Errorf("%+v: want b in X first, whose run is missing, then both in Y", tasks)
	}
	if again := Tasks(done, layouts[:1], managers[:1], 2); len(again) != 1 || again[0].Round != 2 {
		t.Errorf("%+v: want the second round of a in X", again)
	}
}

func TestLeft(t *testing.T) {
	layouts := []Layout{{Name: "X", Seconds: 75}, {Name: "Y", Seconds: 120}}
	tasks := []Task{{Layout: layouts[0]}, {Layout: layouts[1]}}
	if got := Left(tasks, nil, layouts); got != 195*time.Second+2*usualOverhead {
		t.Errorf("before any run: %v", got)
	}
	runs := []Run{{Layout: "X", Took: 85}, {Layout: "Y", Took: 150}, {Layout: "Y", Took: 1, Failed: "it did"}}
	if got := Left(tasks, runs, layouts); got != 235*time.Second {
		t.Errorf("with runs that took 10 and 30 s more: %v", got)
	}
}
