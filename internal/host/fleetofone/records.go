package fleetofone

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// origin is who created a VM, and when; zero: the journal does not say.
type origin struct {
	at time.Time
	by string
}

// origins are those of the VMs of the last observation, by name and UUID. The journal is read when a VM is new.
type origins struct {
	mu  sync.Mutex
	all map[[2]string]origin
}

// of returns the origin of a VM of a host.
func (o *origins) of(g *inventory.Guest, h *inventory.Host, from operate.Journal) origin {
	if !g.Created() {
		return origin{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if made, known := o.all[[2]string{g.Name, g.UUID}]; known {
		return made
	}
	entries, err := from.Entries()
	if err != nil {
		return origin{} // it is read again for the next answer
	}
	made := map[string]origin{}
	for i := range entries {
		if e := &entries[i]; e.Effect == journal.EffectCreate && e.Begins() {
			for _, name := range e.Guests {
				made[name] = origin{e.At, e.By}
			}
		}
	}
	o.all = map[[2]string]origin{}
	for i := range h.Guests {
		if g := &h.Guests[i]; g.Created() {
			o.all[[2]string{g.Name, g.UUID}] = made[g.Name]
		}
	}
	return o.all[[2]string{g.Name, g.UUID}]
}

// why returns the reasons for the nodes of a VM: those of the last change that chose them; nil: the journal has none.
func (s *Service) why(name string) (*fleetapi.Why, error) {
	entries, err := s.Local.Journal.Entries()
	if err != nil {
		return nil, unavailable(err)
	}
	begun := map[string]*journal.Entry{}
	var last *journal.Entry
	for i := range entries {
		e := &entries[i]
		switch {
		case !slices.Contains(e.Guests, name):
		case e.Kind == journal.MoveBegan, e.Begins() && e.Why != "":
			begun[e.ID] = e
		case (e.Takes() || e.Kind == journal.MoveDone || e.Kind == journal.MovePartial) && begun[e.ID] != nil:
			last = begun[e.ID]
		}
		if e.Effect == journal.EffectDelete && e.Takes() && slices.Contains(e.Guests, name) {
			last = nil
		}
	}
	if last == nil {
		return nil, nil //nolint:nilnil // no reasons and no error: another program placed it, or long ago
	}
	why := &fleetapi.Why{Summary: last.Why, Decided: last.At, Fitted: 1}
	if r := last.Reasons; r != nil {
		why.Text, why.Cost = r.Text, r.Cost
		for _, t := range r.Terms {
			why.Terms = append(why.Terms, fleetapi.Term{Name: t.Name, Cost: t.Cost, Why: t.Why})
		}
	}
	return why, nil
}

// Plan implements rest.HostService: the moves between nodes that wait for an operator, and why VMs stay.
func (s *Service) Plan(ctx context.Context, _ rest.Call) (fleetapi.Plan, error) {
	out := fleetapi.Plan{Migrations: []fleetapi.PlannedMigration{}, Blocked: []fleetapi.BlockedVM{}}
	st, err := s.Daemon.Status(ctx)
	if err != nil {
		return out, unavailable(err)
	}
	host := nameIn(&st)
	out.Made, out.Mode = st.Planned.UTC(), st.Mode
	for i := range st.Advice {
		m := &st.Advice[i].Move
		most := slices.MaxFunc(m.Guests, func(a, b plan.GuestMove) int { return cmp.Compare(a.Saves, b.Saves) })
		for j := range m.Guests {
			g := &m.Guests[j]
			out.Migrations = append(out.Migrations, fleetapi.PlannedMigration{VM: g.Guest, From: host, To: host,
				Nodes: g.To(), Advised: true, Relieves: most.Guest, Saves: m.Benefit.AccessCPUs + m.Benefit.WaitCPUs,
				Price: fleetapi.Price{Bytes: g.Bytes, Took: m.Cost.Took, CPUSeconds: m.Cost.Took.Seconds()},
				Why:   m.Why})
		}
	}
	for _, b := range st.Blocked {
		out.Blocked = append(out.Blocked, fleetapi.BlockedVM{VM: b.Guest, Host: host, Kind: string(b.Kind),
			Until: b.Until, Why: b.Why})
	}
	return out, nil
}

// recordID orders what a journal has by its time: later ones have greater IDs.
func recordID(at time.Time, vm string) string { return fmt.Sprintf("%016x-%s", at.UnixNano(), vm) }

// Moves implements rest.HostService: moves between the nodes of the host.
func (s *Service) Moves(ctx context.Context, _ rest.Call, vm string, p rest.Page) (fleetapi.Moves, error) {
	out := fleetapi.Moves{Moves: []fleetapi.Move{}}
	st, err := s.Daemon.Status(ctx)
	if err != nil {
		return out, unavailable(err)
	}
	entries, err := s.Local.Journal.Entries()
	if err != nil {
		return out, unavailable(err)
	}
	host := nameIn(&st)
	all := map[string]fleetapi.Move{}
	parts := map[string][]string{} // the IDs of the parts of a move
	for i := range entries {
		switch e := &entries[i]; {
		case e.Kind == journal.MoveBegan && e.Move != nil:
			for j := range e.Move.Guests {
				g := &e.Move.Guests[j]
				m := fleetapi.Move{ID: recordID(e.At, g.Guest), VM: g.Guest, Project: fleetapi.DefaultProject,
					From: host, To: host, Began: e.At, Outcome: fleetapi.MoveRunning,
					Why: fmt.Sprintf("to nodes %s: %s", g.To(), e.Why)}
				if _, again := all[m.ID]; !again {
					parts[e.ID] = append(parts[e.ID], m.ID)
				}
				all[m.ID] = m
			}
		case e.Ends():
			for _, id := range parts[e.ID] {
				m := all[id]
				m.Ended, m.Outcome, m.Copied = e.At, fleetapi.MoveArrived, e.Moved
				if m.Message = strings.Join(e.Shortfalls, "; "); e.Kind == journal.MoveFailed ||
					e.Kind == journal.MoveUndone {
					m.Outcome, m.Message = fleetapi.MoveStayed, cmp.Or(e.Why, e.What)
				}
				all[id] = m
			}
		}
	}
	for i := range st.Moving {
		for _, id := range parts[st.Moving[i].ID] {
			m := all[id]
			m.Remaining = st.Moving[i].Total - min(st.Moving[i].Done, st.Moving[i].Total)
			all[id] = m
		}
	}
	out.Moves, out.Next = newest(all, p, func(m *fleetapi.Move) bool { return vm == "" || m.VM == vm })
	return out, nil
}

// newest returns a page of records by ID, the newest first, and the next cursor.
func newest[T any](all map[string]T, p rest.Page, wanted func(*T) bool) (out []T, next string) {
	p = p.WithDefaults()
	ids := make([]string, 0, len(all))
	for id, v := range all {
		if (p.Cursor == "" || id < p.Cursor) && wanted(&v) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	out = []T{}
	for i, id := range ids {
		if i == p.Limit {
			return out, ids[i-1]
		}
		out = append(out, all[id])
	}
	return out, ""
}

// operationOf names the operation of the API that has the effect of an entry, or names the effect.
func operationOf(e *journal.Entry) string {
	switch e.Effect {
	case journal.EffectCreate, journal.EffectDelete, journal.EffectStart, journal.EffectStop, journal.EffectBind,
		journal.EffectResize:
		return string(e.Effect) + "-vm"
	case journal.EffectMigrateIn, journal.EffectMigrateOut:
		return "migrate-vm"
	case journal.EffectRun, journal.EffectSetting, journal.EffectPools:
		return string(e.Effect)
	}
	return ""
}

// History implements rest.HostService: what was done with VMs, as the journal has it.
func (s *Service) History(ctx context.Context, _ rest.Call, vm string, p rest.Page) (fleetapi.History, error) {
	out := fleetapi.History{Entries: []fleetapi.HistoryEntry{}}
	entries, err := s.Local.Journal.Entries()
	if err != nil {
		return out, unavailable(err)
	}
	host, err := s.name(ctx)
	if err != nil {
		return out, err
	}
	all := map[string]fleetapi.HistoryEntry{}
	for i := range entries {
		e := &entries[i]
		h := fleetapi.HistoryEntry{At: e.At, By: cmp.Or(e.By, journal.ByDaemon), Operation: operationOf(e), Host: host,
			What: historyText(e)}
		switch {
		case e.Ends():
			h.Operation = "move"
		case !e.Closes():
			continue
		}
		if len(e.Guests) == 0 {
			h.ID = recordID(e.At, e.ID)
			all[h.ID] = h
		}
		for _, name := range e.Guests {
			h.ID, h.VM, h.Project = recordID(e.At, name), name, fleetapi.DefaultProject
			all[h.ID] = h
		}
	}
	out.Entries, out.Next = newest(all, p, func(h *fleetapi.HistoryEntry) bool { return vm == "" || h.VM == vm })
	return out, nil
}

// historyText says in words what was done, and what was not.
func historyText(e *journal.Entry) string {
	text := e.What
	if e.Ends() || e.Closes() {
		if result := strings.TrimPrefix(string(e.Kind), string(e.Effect)+"-"); e.Effect != "" && result != "done" {
			text += ": " + result
		}
	}
	if e.Why != "" {
		text += ": " + e.Why
	}
	if len(e.Shortfalls) > 0 {
		text += ": " + strings.Join(e.Shortfalls, "; ")
	}
	return text
}
