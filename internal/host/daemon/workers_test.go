package daemon

import (
	"reflect"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// The controller gets each fact of a move that it decides on: a field that is not passed on would be its zero value.
func TestEnded_PassesEachFactOfAMove(t *testing.T) {
	moved := move.Result{
		Move: plan.Move{Why: "because"}, End: journal.MoveDone, Bytes: 1, Pulled: 2, Copied: time.Second, Cancelled: true,
		Left: []string{"web1"}, Held: &journal.SettingChange{}, Idle: []string{"web2"}, GaveWay: true, Pauses: true,
	}
	e := ended([]move.Result{moved}, nil)
	if len(e.Moved) != 1 {
		t.Fatalf("%d moves, want 1", len(e.Moved))
	}
	want, got := reflect.ValueOf(moved), reflect.ValueOf(e.Moved[0])
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		if w := want.FieldByName(name); !w.IsValid() || w.IsZero() {
			t.Errorf("the test gives no %s to the move", name)
		} else if g := got.Field(i); !reflect.DeepEqual(g.Interface(), w.Interface()) {
			t.Errorf("%s is %v, want %v", name, g, w)
		}
	}
}
