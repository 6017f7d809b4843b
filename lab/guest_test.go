package lab

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseWork(t *testing.T) {
	console := "NUMAVISOR-GUEST READY 380 1\r\nWORK 5002 4096\r\n[   12.1] random: crng init done\r\nWORK 10001 " +
		"8192\r\nWORK 15000 12"
	want := []Work{{5002 * time.Millisecond, 4096}, {10001 * time.Millisecond, 8192}}
	if diff := cmp.Diff(want, parseWork([]byte(console))); diff != "" {
		t.Errorf("with an incomplete last line (-want +got):\n%s", diff)
	}
	for _, none := range []string{"", "WORK", "WORK x 1\r\n", "NETWORK 1 2\r\n", "WORK -1 -2\r\n"} {
		if got := parseWork([]byte(none)); len(got) != 0 {
			t.Errorf("%q is no work, got %v", none, got)
		}
	}
}

func TestWorkOrder_IsALineOfTheGuests(t *testing.T) {
	o := WorkOrder{Name: "w0", Times: 24, Phases: []Phase{{At: 0, From: 0, To: 33}, {At: time.Minute, From: 33, To: 100}}}
	if got := o.line(5 * time.Second); got != "work 5000 24 0 0 33 60000 33 100" {
		t.Errorf("with two phases: %q", got)
	}
	if got := (WorkOrder{Times: 3}).line(time.Second); got != "work 1000 3" {
		t.Errorf("without phases: %q", got)
	}
}
