package handoff_test

import (
	"slices"
	"testing"
	"time"

	words "github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/internal/decide/alarm"
	decide "github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
)

// raised returns the alarms of a guest that last for three minutes, by what those who watch see.
func (w *world) raised(seen *handoff.Watched, name string) (all []words.Quantity) {
	var state words.State
	for second := range 180 {
		at := w.now.Add(time.Duration(second) * time.Second)
		s := inventory.Sample{Window: time.Second, Guests: []inventory.GuestSample{
			{Name: name, Load: inventory.GuestLoad{Window: time.Second}},
		}}
		decide.Attribute(&s, seen.Holdings(at))
		state, _ = alarm.Judge(nil, alarm.Input{Sample: s, Guests: []alarm.Guest{{Name: name}}}, state, at)
	}
	for _, a := range state.Active() {
		all = append(all, a.Quantity)
	}
	return all
}

// From the hands of a daemon to its alarms: a guest whose released vCPUs run, and one whose agent has stopped
// answering, are seen; their peer is not.
func TestFaultsOfGuestsRaiseAlarms(t *testing.T) {
	w := calm(t)
	liar, other := w.vms[0], w.vms[1]
	seen := &handoff.Watched{}
	pass := func(ms int) {
		for range ms {
			w.advance()
			seen.See(w.hands, w.now)
		}
	}
	liar.want = len(liar.Mirror) - 1
	w.report(liar)
	pass(500)
	for _, v := range w.vms {
		if got := w.raised(seen, v.Name); len(got) > 0 {
			t.Fatalf("alarms of %s before anything is wrong: %v", v.Name, got)
		}
	}
	other.want = len(other.Mirror) / 2
	w.report(other)
	for range 200 { // it acknowledges each release, and runs on
		liar.epoch, liar.used = uint64(w.hands.Record().Epochs[liar.Name]), guest.Of()
		for v, cpu := range liar.Mirror {
			if w.held(liar).Contains(cpu) {
				liar.used.Add(v)
			}
		}
		liar.hostile = false
		w.report(liar)
		liar.hostile = true
		pass(1)
	}
	liar.hostile = false
	if got := w.raised(seen, liar.Name); !slices.Equal(got, []words.Quantity{words.GuestMisbehaves}) {
		t.Errorf("alarms of the guest whose released vCPUs ran: %v", got)
	}
	h := seen.Holdings(w.now)[liar.Name]
	if h.Misbehaved == 0 || h.MisbehavedAt.IsZero() || h.Times.Count() == 0 || h.Means != string(guest.Partition) {
		t.Errorf("it is shown as %+v", h)
	}
	other.deaf = true
	pass(4000)
	if got := w.raised(seen, other.Name); !slices.Equal(got, []words.Quantity{words.GuestAgent}) {
		t.Errorf("alarms of the guest whose agent does not answer: %v", got)
	}
}
