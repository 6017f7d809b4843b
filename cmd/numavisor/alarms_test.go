package main

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
)

// WHY has the first clause of a reason; all of it is in -o json and yaml.
func TestAlarms_TableHasOneShortLineForEachAlarm(t *testing.T) {
	long := "no figures of its memory by node: only numa_maps has them, and that file walks every page\n" +
		"its figures are as old as the last inventory; its vCPU threads: none has a vCPU's name"
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	list := alarmList{Written: since, Alarms: []alarm.Alarm{
		{Quantity: alarm.SourceUnreadable, Object: inventory.GuestRef("a"), Severity: alarm.Warning, First: since,
			Why: long},
		{Quantity: alarm.SourceUnreadable, Object: inventory.HostRef(), Severity: alarm.Warning, First: since,
			Why: "short; rest"},
		{Quantity: alarm.GuestWait, Object: inventory.GuestRef("b"), Severity: alarm.Warning, First: since},
		{Quantity: alarm.NodeCPU, Object: inventory.NodeRef(3), Severity: alarm.Critical, First: since,
			Guests: []string{"a-long-name-of-a-VM"}, Why: "first line\nsecond line"},
	}}
	var out strings.Builder
	printAlarms(&out, list, false)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines, want a heading and 4 alarms:\n%s", len(lines), out.String())
	}
	at := strings.Index(lines[0], "WHY")
	short := "no figures of its memory by node: only numa_maps has them, …"
	for i, want := range []string{short, "short", "", "first line"} {
		if why := lines[i+1][min(at, len(lines[i+1])):]; why != want {
			t.Errorf("WHY of alarm %d is %q, want %q:\n%s", i, why, want, out.String())
		}
	}
}

// A row without its last cells does not end the alignment of the others.
func TestColumns_AlignRowsWithEmptyCells(t *testing.T) {
	var out strings.Builder
	columns(&out, [][]string{{"A", "B", "C"}, {"1", "2", "3"}, {"1", "", ""}, {"1", "wide cell", "3"}})
	want := "A  B          C\n1  2          3\n1\n1  wide cell  3\n"
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}
