package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
)

// mostMoves bounds the stored migrations.
const mostMoves = 5000

// moveID identifies a migration. IDs ascend by the time of the beginning.
func moveID(vm string, began time.Time) string { return fmt.Sprintf("%016x-%s", began.UnixNano(), vm) }

// moveOf describes a VM's migration as the statuses of its hosts say; it has not ended.
func moveOf(st *state, vm *fleet.VM) fleetapi.Move {
	m := vm.Migration
	out := fleetapi.Move{ID: moveID(vm.Name, m.Began), VM: vm.Name, Project: vm.Project, From: vm.Host, To: m.To,
		Began: m.Began, Outcome: fleetapi.MoveRunning, Why: m.Why, Options: m.Options, Message: m.Cancel}
	for _, host := range []string{vm.Host, m.To} {
		s := orZero(st.statusOf(vm.Name, host)).value
		part := partOf(&s, m.Began)
		if part.Phase == "" {
			continue
		}
		out.Remaining = max(out.Remaining, part.Remaining)
		out.Message = orElse(out.Message, part.Message)
		if part.Phase == fleet.MigrationArrived {
			out.Downtime, out.Copied = s.Downtime, s.Copied
		}
	}
	return out
}

// ended completes the description of a migration that ends with a new record of the VM.
func ended(m fleetapi.Move, after *fleet.VM, now time.Time) fleetapi.Move {
	m.Ended, m.Outcome, m.Remaining = now, fleetapi.MoveStayed, 0
	if after.Host == m.To {
		m.Outcome, m.Message = fleetapi.MoveArrived, ""
	}
	return m
}

// storedMoves returns the migrations that have ended, ascending by ID.
func (s *Server) storedMoves(ctx context.Context) ([]fleetapi.Move, error) {
	records, _, err := s.Store.List(ctx, store.Moves)
	if err != nil && !errors.Is(err, store.ErrStale) {
		return nil, unavailable(err)
	}
	out := make([]fleetapi.Move, 0, len(records))
	for _, r := range records {
		var m fleetapi.Move
		if err := json.Unmarshal(r.Value, &m); err != nil {
			s.Log.Error("a record was ignored", "key", r.Key, "error", err)
			continue
		}
		out = append(out, m)
	}
	return out, nil
}

// Moves implements rest.Service.
func (s *Server) Moves(ctx context.Context, c rest.Call, vm string, p rest.Page) (fleetapi.Moves, error) {
	all, err := s.storedMoves(ctx)
	if err != nil {
		return fleetapi.Moves{}, err
	}
	s.cache.read(func(st *state) {
		for name := range st.migrating {
			v := st.vmOf(name).value
			all = append(all, moveOf(st, &v))
		}
	})
	slices.SortFunc(all, func(a, b fleetapi.Move) int {
		if c := strings.Compare(b.ID, a.ID); c != 0 {
			return c
		}
		return b.Ended.Compare(a.Ended) // it has ended between the two readings
	})
	all = slices.CompactFunc(all, func(a, b fleetapi.Move) bool { return a.ID == b.ID })
	out := fleetapi.Moves{Moves: []fleetapi.Move{}}
	for i := range all {
		m := &all[i]
		if !c.User.Has(m.Project) || vm != "" && m.VM != vm || p.Cursor != "" && m.ID >= p.Cursor {
			continue
		}
		if len(out.Moves) == p.Limit {
			out.Next = out.Moves[p.Limit-1].ID
			break
		}
		out.Moves = append(out.Moves, *m)
	}
	return out, nil
}
