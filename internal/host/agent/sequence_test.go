package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
)

// The reports of a later run have higher numbers, also if the clock goes back.
func TestBeginSequence_Rises(t *testing.T) {
	folder := t.TempDir()
	now, last := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), int64(0)
	for _, step := range []time.Duration{0, time.Second, -24 * time.Hour, 0, 48 * time.Hour} {
		now = now.Add(step)
		begin, err := beginSequence(folder, now)
		if err != nil || begin < last+1000 {
			t.Fatalf("the run at %v begins at %d after one at %d: %v", now, begin, last, err)
		}
		last = begin
	}
	if err := os.WriteFile(filepath.Join(folder, sequenceFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if begin, err := beginSequence(folder, now.Add(time.Hour)); err == nil || begin != now.Add(time.Hour).UnixNano() {
		t.Errorf("a damaged file: got %d, %v", begin, err)
	}
	if _, err := beginSequence(folder, now); err != nil {
		t.Errorf("the damaged file was not replaced: %v", err)
	}
}

func TestOutbox_NumbersStatusesThatChange(t *testing.T) {
	o := newOutbox()
	o.sequence = 10
	o.status(fleet.VMStatus{Name: "vm", Phase: fleet.PhaseWorking})
	o.status(fleet.VMStatus{Name: "vm", Phase: fleet.PhaseRunning})
	o.status(fleet.VMStatus{Name: "vm", Phase: fleet.PhaseRunning, Since: time.Unix(1, 0)})
	if _, s := o.next(); s == nil || s.Sequence != 12 || s.Phase != fleet.PhaseRunning {
		t.Errorf("the second status is expected, got %+v", s)
	}
	o.repeat()
	if _, s := o.next(); s == nil || s.Sequence != 12 {
		t.Errorf("a repeated status must have its number, got %+v", s)
	}
}

func TestOutbox_RepeatsEachStatusInTurn(t *testing.T) {
	o := newOutbox()
	if n := o.repeatOne(); n != 0 {
		t.Errorf("%d statuses of an empty outbox", n)
	}
	for _, name := range []string{"b", "a", "c"} {
		o.status(fleet.VMStatus{Name: name})
	}
	for range 3 {
		o.next()
	}
	for _, want := range []string{"a", "b", "c", "a"} {
		n := o.repeatOne()
		if _, s := o.next(); n != 3 || s == nil || s.Name != want || s.Sequence == 0 {
			t.Errorf("of %d, %s is expected, got %+v", n, want, s)
		}
		if r, s := o.next(); r != nil || s != nil {
			t.Errorf("one status is expected, also got %+v, %+v", r, s)
		}
	}
}
