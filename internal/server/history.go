package server

import (
	"cmp"
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

// stored is an entry of the audit, to be read.
type stored struct {
	fleetapi.AuditEntry
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
}

// History implements rest.Service: the audit of VMs and hosts without the records themselves, and
// the ends of migrations.
func (s *Server) History(ctx context.Context, c rest.Call, vm string, p rest.Page) (fleetapi.History, error) {
	records, _, err := s.Store.List(ctx, store.Audit)
	if err != nil && !errors.Is(err, store.ErrStale) {
		return fleetapi.History{}, unavailable(err)
	}
	moves, err := s.storedMoves(ctx)
	if err != nil {
		return fleetapi.History{}, err
	}
	var all []fleetapi.HistoryEntry
	wanted := func(e *fleetapi.HistoryEntry) bool {
		return (p.Cursor == "" || e.ID < p.Cursor) && (vm == "" || e.VM == vm) && (e.VM == "" || c.User.Has(e.Project))
	}
	for i := range moves {
		if e := entryOfMove(&moves[i]); wanted(&e) {
			all = append(all, e)
		}
	}
	most := len(all) + p.Limit + 1 // more of the audit cannot be on this page
	for _, r := range slices.Backward(records) {
		var a stored
		if json.Unmarshal(r.Value, &a) != nil {
			continue
		}
		if e, ok := entryOf(&a); ok && wanted(&e) {
			if all = append(all, e); len(all) >= most {
				break
			}
		}
	}
	slices.SortFunc(all, func(a, b fleetapi.HistoryEntry) int { return strings.Compare(b.ID, a.ID) })
	out := fleetapi.History{Entries: append([]fleetapi.HistoryEntry{}, all[:min(len(all), p.Limit)]...)}
	if len(all) > p.Limit {
		out.Next = out.Entries[p.Limit-1].ID
	}
	return out, nil
}

// entryOf describes an entry of the audit; false: it is about neither a VM nor a host.
func entryOf(a *stored) (fleetapi.HistoryEntry, bool) {
	e := fleetapi.HistoryEntry{ID: a.ID, At: a.At, By: a.User, Operation: a.Operation}
	switch a.Kind {
	case fleetapi.AboutHost:
		before, after := read[fleet.Host](a.Before), read[fleet.Host](a.After)
		e.Host, e.What = a.Name, hostChange(before, after)
	case fleetapi.AboutVM:
		before, after := read[fleet.VM](a.Before), read[fleet.VM](a.After)
		e.VM, e.What = a.Name, vmChange(before, after)
		e.Project = cmp.Or(orZero(after).Project, orZero(before).Project)
	case fleetapi.AboutProject, fleetapi.AboutUser, fleetapi.AboutJoin:
		return e, false
	}
	return e, e.What != ""
}

// read decodes a record; nil: there is none.
func read[T any](data json.RawMessage) *T {
	var v *T
	if len(data) == 0 || json.Unmarshal(data, &v) != nil {
		return nil
	}
	return v
}

func hostChange(before, after *fleet.Host) string {
	switch {
	case before == nil:
		return "joined"
	case after == nil:
		return "removed"
	case before.Dead == nil && after.Dead != nil:
		return strings.TrimSuffix("declared dead: "+after.Dead.Why, ": ")
	case before.Dead != nil && after.Dead == nil:
		return "declared alive"
	case !before.Draining && after.Draining:
		return "is drained: its VMs migrate to other hosts"
	case !before.Cordoned && after.Cordoned:
		return "cordoned: gets no new VMs"
	case before.Cordoned && !after.Cordoned:
		return "uncordoned: gets new VMs"
	}
	return "rack, labels or preference changed"
}

// vmChange says in words how a VM's desired state has changed.
func vmChange(before, after *fleet.VM) string {
	if after == nil {
		return "removed"
	}
	if before == nil {
		before = &fleet.VM{Run: after.Run, Spec: after.Spec}
	}
	var parts []string
	add := func(changed bool, text string, args ...any) {
		if changed {
			parts = append(parts, fmt.Sprintf(text, args...))
		}
	}
	m := after.Migration
	add(after.Delete && !before.Delete, "to be deleted")
	add(!after.Delete && before.Run != after.Run, "to be %s", after.Run)
	add(before.Spec.VCPUs != after.Spec.VCPUs || before.Spec.Memory != after.Spec.Memory, "%d vCPUs and %v",
		after.Spec.VCPUs, after.Spec.Memory)
	add(after.Host != "" && (after.Host != before.Host || !after.Placement.Nodes.Equal(before.Placement.Nodes)),
		"placed on host %s, nodes %v", after.Host, after.Placement.Nodes)
	add(after.Host == "", "no host: %s", after.Pending)
	add(m != nil && before.Migration == nil, "migrates to host %s, nodes %v: %s", orZero(m).To,
		orZero(m).Placement.Nodes, orZero(m).Why)
	if len(parts) == 0 {
		return "CPUs or memory of its nodes changed"
	}
	return strings.Join(parts, "; ")
}

// entryOfMove describes the end of a migration.
func entryOfMove(m *fleetapi.Move) fleetapi.HistoryEntry {
	e := fleetapi.HistoryEntry{ID: fmt.Sprintf("%016x-%s", m.Ended.UnixNano(), m.VM), At: m.Ended, By: "server",
		Operation: "end-migration", VM: m.VM, Project: m.Project, Host: m.From,
		What: fmt.Sprintf("stayed on host %s: %s", m.From, m.Message)}
	if m.Outcome == fleetapi.MoveArrived {
		e.Host = m.To
		e.What = fmt.Sprintf("migrated from host %s to %s: %v copied, stopped for %v", m.From, m.To, m.Copied,
			m.Downtime.Round(time.Millisecond))
	}
	return e
}
