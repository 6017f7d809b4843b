package fleetofone

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
)

// lookEvery is the longest time between two observations for events.
const lookEvery = 10 * time.Second

// seen is what a receiver of events knows.
type seen struct {
	vms  map[string]fleetapi.VM
	host fleetapi.Host
}

// Events implements rest.HostService. The host is observed for events when VMs come or go, after each change of this
// service, and every few seconds.
func (s *Service) Events(ctx context.Context, c rest.Call) (<-chan fleetapi.Event, error) {
	changes, roster, looked := s.counted(), s.roster(), time.Now() // before the look: a later change is not in it
	before, err := s.see(ctx, c)
	if err != nil {
		return nil, err
	}
	out := make(chan fleetapi.Event)
	go func() {
		defer close(out)
		tick := time.NewTicker(s.Every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			nowChanges, nowRoster := s.counted(), s.roster()
			if nowChanges == changes && nowRoster == roster && time.Since(looked) < lookEvery {
				continue
			}
			after, err := s.see(ctx, c)
			if err != nil {
				continue // the host is looked at again at the next tick
			}
			for _, e := range differences(before, after) {
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
			before, changes, roster, looked = after, nowChanges, nowRoster, time.Now()
		}
	}()
	return out, nil
}

// counted counts changes: those that have begun and those that have ended.
func (s *Service) counted() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

func (s *Service) roster() string {
	if s.Roster == nil {
		return ""
	}
	return s.Roster()
}

// see returns what events are about.
func (s *Service) see(ctx context.Context, _ rest.Call) (out seen, err error) {
	h, err := s.complete(ctx)
	if err != nil {
		return out, err
	}
	var name string
	out.vms, name = s.all(ctx, h)
	out.host, err = s.shownHost(ctx, h, name)
	return out, err
}

// differences returns the events between two looks.
func differences(before, after seen) (out []fleetapi.Event) {
	if before.host.VMs != after.host.VMs || before.host.Left != after.host.Left ||
		!maps.Equal(before.host.Alarms, after.host.Alarms) {
		out = append(out, fleetapi.Event{Revision: after.host.Revision, Kind: fleetapi.EventHost,
			Name: after.host.Name, Host: &after.host})
	}
	for _, name := range slices.Sorted(maps.Keys(before.vms)) {
		if _, exists := after.vms[name]; !exists {
			out = append(out, fleetapi.Event{Revision: before.vms[name].Revision, Kind: fleetapi.EventVM, Name: name,
				Deleted: true})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.vms)) {
		was, now := before.vms[name], after.vms[name]
		was.Load, now.Load = nil, nil // it changes all the time
		if !reflect.DeepEqual(was, now) {
			shown := after.vms[name]
			out = append(out, fleetapi.Event{Revision: shown.Revision, Kind: fleetapi.EventVM, Name: name, VM: &shown})
		}
	}
	return out
}
