package reconcile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/reconcile"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// machine is a VM on the simulated host.
type machine struct {
	uuid    string
	runs    bool
	node    topology.NodeID
	spec    guest.Spec
	foreign bool
}

// action is one that runs.
type action struct {
	reconcile.Action
	early bool // its effect has taken place already
}

// simulator is a host, its daemon and the fleet's record, independent of Decide. Messages
// between the two are lost, repeated and late; the daemon is killed at any point.
type simulator struct {
	*rapid.T
	now      time.Time
	host     map[string]*machine
	uuids    int
	fleet    fleet.Desired
	sent     []fleet.Desired // all earlier states
	got      fleet.Desired
	state    reconcile.State
	running  map[string]action
	reported map[string]fleet.VMStatus
	hidden   bool
	lost     bool // the daemon's stored state
}

var names = []string{"a", "b", "c"}

func place(name string, node topology.NodeID) guest.Placement {
	return guest.Placement{Guest: name, Nodes: topology.SetOf(node)}
}

func (s *simulator) inventory() *inventory.Host {
	h := &inventory.Host{Taken: s.now}
	for _, name := range names {
		m, ok := s.host[name]
		if !ok {
			continue
		}
		g := inventory.Guest{Name: name, UUID: m.uuid, State: "shutoff", Persistent: true}
		if m.runs {
			g.State = "running"
		}
		if !m.foreign {
			g.SetIntent(guest.Intent{Spec: m.spec, Placement: place(name, m.node)})
		}
		h.Guests = append(h.Guests, g)
	}
	if s.hidden {
		h.Guests, h.Gaps = nil, []inventory.Gap{inventory.UnseenGap(guest.LibvirtQEMU, "a test")}
	}
	return h
}

// decide lets the daemon decide, and begins the actions.
func (s *simulator) decide() reconcile.Decision {
	busy := map[string]bool{}
	for name := range s.running {
		busy[name] = true
	}
	r := reconcile.Request{Now: s.now, Self: "here", Host: s.inventory(), Desired: s.got, Busy: busy, State: s.state,
		Reported: s.reported}
	d := reconcile.Decide(r)
	if again := reconcile.Decide(r); asText(again) != asText(d) {
		s.Fatalf("the same input gives %s and %s", asText(d), asText(again))
	}
	s.state = d.State
	for _, a := range d.Actions {
		if _, twice := s.running[a.VM.Name]; twice {
			s.Fatalf("%s of %s begins while another action runs", a.Kind, a.VM.Name)
		}
		if s.hidden {
			s.Fatalf("%s of %s on a host whose VMs are hidden", a.Kind, a.VM.Name)
		}
		s.running[a.VM.Name] = action{Action: a}
	}
	for _, status := range d.Statuses {
		s.reported[status.Name] = status
	}
	return d
}

func asText(d reconcile.Decision) string {
	text, _ := json.Marshal([]any{d, d.State.Attempts})
	return string(text)
}

// carryOut makes the effect of an action. It refuses as the real one does.
func (s *simulator) carryOut(a *action) error {
	m, name := s.host[a.VM.Name], a.VM.Name
	node, _ := a.VM.Placement.Nodes.First()
	switch {
	case a.Kind == reconcile.Create && m != nil:
		return errors.New("exists")
	case a.Kind == reconcile.Create:
	case m == nil:
		return errors.New("gone")
	case m.foreign:
		s.Fatalf("%s of %s, which the fleet did not create", a.Kind, name)
	}
	switch a.Kind {
	case reconcile.Create, reconcile.Replace:
		s.uuids++
		s.host[name] = &machine{uuid: fmt.Sprint(s.uuids), runs: true, node: node, spec: a.VM.Spec}
	case reconcile.Delete:
		delete(s.host, name)
	case reconcile.Stop:
		m.runs = false
	case reconcile.Start, reconcile.Bind:
		m.runs, m.node = true, node
	case reconcile.Adopt:
		s.Fatalf("nothing is to be adopted here")
	}
	return nil
}

// end ends an action, whose answer may be lost.
func (s *simulator) end(name string) {
	a := s.running[name]
	delete(s.running, name)
	var err error
	switch how := rapid.IntRange(0, 5).Draw(s.T, "end"); {
	case how == 0 && !a.early:
		err = errors.New("it failed")
	case how == 1:
		_ = s.carryOut(&a)
		err = errors.New("it was done, and its answer lost")
	case !a.early:
		err = s.carryOut(&a)
	}
	s.state = s.state.Ended(a.Action, s.now, err)
}

// restart kills the daemon. What it had not stored is lost.
func (s *simulator) restart(lost bool) {
	for _, name := range slices.Sorted(maps.Keys(s.running)) {
		a := s.running[name]
		if rapid.Bool().Draw(s.T, "effect of "+name) {
			_ = s.carryOut(&a)
		}
	}
	s.running, s.reported = map[string]action{}, map[string]fleet.VMStatus{}
	text, err := json.Marshal(s.state)
	if err != nil {
		s.Fatal(err)
	}
	s.state = reconcile.State{}
	if err := json.Unmarshal(text, &s.state); err != nil {
		s.Fatal(err)
	}
	if lost {
		s.state, s.lost = reconcile.State{}, true
	}
}

// edit changes the fleet's record as users do.
func (s *simulator) edit(name string) {
	s.fleet.Revision++
	s.fleet.VMs = slices.Clone(s.fleet.VMs)
	i := slices.IndexFunc(s.fleet.VMs, func(v fleet.VM) bool { return v.Name == name })
	if i < 0 {
		s.fleet.VMs = append(s.fleet.VMs, fleet.VM{Name: name, Host: "here", Run: fleet.Running, Generation: 1,
			Created: s.now, Spec: guest.Spec{Name: name, VCPUs: 1, Memory: topology.GiB},
			Placement: place(name, 0)})
		return
	}
	v := &s.fleet.VMs[i]
	v.Generation++
	switch rapid.IntRange(0, 4).Draw(s.T, "edit") {
	case 0:
		v.Run = fleet.Stopped
	case 1:
		v.Run = fleet.Running
	case 2:
		v.Placement = place(name, topology.NodeID(rapid.IntRange(0, 3).Draw(s.T, "node")))
	case 3:
		if v.Run == fleet.Stopped {
			v.Spec.VCPUs++
		}
	case 4:
		if v.Delete && s.reported[name].Phase == fleet.PhaseGone && s.reported[name].Generation == v.Generation-1 {
			s.fleet.VMs = slices.Delete(s.fleet.VMs, i, i+1)
			return
		}
		v.Delete = true
	}
}

// outside changes the host as its own balancing, guests and other programs do.
func (s *simulator) outside(name string) {
	m := s.host[name]
	switch what := rapid.IntRange(0, 4).Draw(s.T, "outside"); {
	case m == nil && what == 0:
		s.uuids++
		s.host[name] = &machine{uuid: fmt.Sprint(s.uuids), runs: true, foreign: true}
	case m == nil || s.running[name].Kind != "":
	case what == 1 && !m.foreign:
		m.node = topology.NodeID(rapid.IntRange(0, 3).Draw(s.T, "node"))
	case what == 2 && !m.foreign:
		m.runs = false
	case what == 3:
		delete(s.host, name)
	}
}

func (s *simulator) step() {
	name := rapid.SampledFrom(names).Draw(s.T, "name")
	switch rapid.IntRange(0, 9).Draw(s.T, "step") {
	case 0, 1:
		s.edit(name)
		s.sent = append(s.sent, s.fleet)
	case 2:
		s.outside(name)
	case 3: // a message arrives, in the order of its connection or as the first one
		if len(s.sent) > 0 {
			m := s.sent[rapid.IntRange(0, len(s.sent)-1).Draw(s.T, "message")]
			if reconcile.Newer(s.got, m, rapid.Bool().Draw(s.T, "first")) {
				s.got = m
			}
		}
	case 4:
		s.got = s.fleet
	case 5:
		s.now = s.now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(s.T, "seconds")) * time.Second)
	case 6:
		s.hidden = !s.hidden
	case 7:
		s.restart(rapid.IntRange(0, 9).Draw(s.T, "stored") == 0)
	default:
		if _, busy := s.running[name]; busy {
			s.end(name)
		} else {
			s.decide()
		}
	}
}

// settle lets the daemon act until it has nothing to do. The faults have ended.
func (s *simulator) settle() {
	for range 100 {
		d := s.decide()
		if len(s.running) == 0 && d.Next.IsZero() {
			return
		}
		for name, a := range s.running {
			delete(s.running, name)
			s.state = s.state.Ended(a.Action, s.now, s.carryOut(&a))
		}
		if !d.Next.IsZero() {
			s.now = d.Next
		}
	}
	s.Fatalf("it does not settle: %s", asText(s.decide()))
}

// Whatever was lost, repeated or late, and wherever the daemon was killed: the latest
// desired state is reached, and no VM of others is touched.
func TestDecide_Converges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulator{T: t, now: time.Unix(1e9, 0), host: map[string]*machine{},
			running: map[string]action{}, reported: map[string]fleet.VMStatus{}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			s.step()
		}
		s.hidden = false
		for name, a := range s.running {
			delete(s.running, name)
			s.state = s.state.Ended(a.Action, s.now, s.carryOut(&a))
		}
		// Users repeat their request, so that VMs that other programs removed or moved return.
		s.fleet.Revision++
		s.fleet.VMs = slices.Clone(s.fleet.VMs)
		for i := range s.fleet.VMs {
			v := &s.fleet.VMs[i]
			v.Generation++
			v.Placement = place(v.Name, 4+v.Placement.Nodes.IDs()[0])
		}
		s.got = s.fleet
		before := map[string]machine{}
		for name, m := range s.host {
			before[name] = *m
		}
		s.settle()
		s.check(before)
	})
}

func (s *simulator) check(before map[string]machine) {
	for _, name := range names {
		m := s.host[name]
		i := slices.IndexFunc(s.fleet.VMs, func(v fleet.VM) bool { return v.Name == name })
		status := s.reported[name]
		if was, existed := before[name]; existed && (was.foreign || i < 0) {
			if m == nil || m.uuid != was.uuid || m.runs != was.runs || m.node != was.node {
				s.Fatalf("VM %s, which is not the fleet's, changed from %+v to %+v", name, was, m)
			}
			if i >= 0 && !s.fleet.VMs[i].Delete && s.fleet.VMs[i].Run == fleet.Running &&
				status.Phase != fleet.PhaseFailed {
				s.Fatalf("VM %s of another program is reported as %s", name, status.Phase)
			}
			continue
		}
		if i < 0 {
			continue
		}
		v := &s.fleet.VMs[i]
		want := fleet.PhaseRunning
		switch {
		case v.Delete:
			want = fleet.PhaseGone
		case v.Run == fleet.Stopped:
			want = fleet.PhaseStopped
		}
		if was, existed := before[name]; s.lost && existed && status.Phase == fleet.PhaseFailed && m.uuid == was.uuid {
			continue // it looks like a VM that others created
		}
		earlier := v.Created.Before(s.state.Known[name].Created)
		if earlier && status.Phase == fleet.PhaseFailed && want != fleet.PhaseRunning {
			continue // the clock was set back, and a VM of the name exists: only a later change counts
		}
		if status.Phase != want || status.Generation != v.Generation {
			s.Fatalf("VM %s is reported as %+v, want %s of generation %d", name, status, want, v.Generation)
		}
		switch {
		case v.Delete && m != nil:
			s.Fatalf("VM %s was deleted and exists: %+v", name, m)
		case !v.Delete && v.Run == fleet.Stopped && m != nil && m.runs:
			s.Fatalf("VM %s was stopped and runs", name)
		case !v.Delete && v.Run == fleet.Running &&
			(m == nil || !m.runs || m.spec.VCPUs != v.Spec.VCPUs || !v.Placement.Nodes.Contains(m.node)):
			s.Fatalf("VM %s is %+v, want it running as %+v", name, m, v)
		}
	}
}
