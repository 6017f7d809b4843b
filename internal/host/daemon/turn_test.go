package daemon

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// sampling is a watcher that lets workers end while it takes a sample.
type sampling struct{ meanwhile func() }

func (sampling) Follow([]inventory.Guest, *topology.Topology) {}

func (s sampling) Sample() inventory.Sample {
	s.meanwhile()
	return inventory.Sample{}
}

// empty is a journal without entries.
type empty struct{ Journal }

func (empty) Entries() ([]journal.Entry, error) { return nil, nil }

// A turn decides after the events that came before it and during its sample: it neither plans without the result of a
// change, nor lets one wait for the next turn.
func TestTurn_DecidesAfterTheEventsThatHaveCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Daemon
		came := 0
		come := func() { // a worker ends
			go func() {
				d.send(control.Observed{})
				came++
			}()
			synctest.Wait()
		}
		d = New(Options{Host: &move.Host{}, Watcher: sampling{come}, Journal: empty{}})
		l := &loop{Daemon: d, ctx: t.Context(), early: time.NewTimer(time.Hour)}
		l.controller = control.New(control.Options{
			Policy: d.Host.Policy, Sample: d.Every, Observe: d.Look, Plan: d.Plan, SaveAlarms: time.Hour,
		})
		l.early.Stop()
		come()
		l.turn()
		synctest.Wait()
		if came != 2 {
			t.Errorf("%d of 2 events were taken", came)
		}
	})
}
