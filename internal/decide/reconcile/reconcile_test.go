package reconcile_test

import (
	"errors"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/reconcile"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var (
	now  = time.Unix(1e9, 0)
	spec = guest.Spec{Name: "web", VCPUs: 2, Memory: topology.GiB}
)

func wanted(change ...func(*fleet.VM)) fleet.VM {
	v := fleet.VM{Name: "web", Host: "here", Run: fleet.Running, Generation: 3, Spec: spec,
		Placement: place("web", 1)}
	for _, c := range change {
		c(&v)
	}
	return v
}

func seen(state string, change ...func(*inventory.Guest)) *inventory.Guest {
	g := inventory.Guest{Name: "web", UUID: "u", State: state}
	g.SetIntent(guest.Intent{Spec: spec, Placement: place("web", 1)})
	for _, c := range change {
		c(&g)
	}
	return &g
}

// What is done for one VM, and what is reported of it.
func TestDecide_OneVM(t *testing.T) {
	const hidden = "hidden"
	known := reconcile.State{Known: map[string]reconcile.Known{
		"web": {UUID: "u", Generation: 3, Placement: place("web", 1)}}}
	foreign := func(g *inventory.Guest) { g.Managed, g.Spec, g.Placement = false, nil, nil }
	gone := func(v *fleet.VM) { v.Host = "there" }
	for name, c := range map[string]struct {
		want  fleet.VM
		have  *inventory.Guest
		state reconcile.State
		gap   string
		does  reconcile.Kind
		says  fleet.Phase
	}{
		"missing":               {want: wanted(), does: reconcile.Create, says: fleet.PhaseWorking},
		"in place":              {want: wanted(), have: seen("running"), says: fleet.PhaseRunning},
		"ended by itself":       {want: wanted(), have: seen("shutoff"), does: reconcile.Start, says: fleet.PhaseWorking},
		"removed by others":     {want: wanted(), state: known, says: fleet.PhaseFailed},
		"hidden":                {want: wanted(), gap: hidden, says: fleet.PhaseFailed},
		"of another program":    {want: wanted(), have: seen("running", foreign), says: fleet.PhaseFailed},
		"not created yet":       {want: wanted(func(v *fleet.VM) { v.Run = fleet.Stopped }), says: fleet.PhaseStopped},
		"deleted, was never":    {want: wanted(func(v *fleet.VM) { v.Delete = true }), says: fleet.PhaseGone},
		"deleted while hidden":  {want: wanted(func(v *fleet.VM) { v.Delete = true }), gap: hidden, says: fleet.PhaseFailed},
		"deleted, of others":    {want: wanted(func(v *fleet.VM) { v.Delete = true }), have: seen("running", foreign), says: fleet.PhaseGone},
		"to adopt":              {want: wanted(func(v *fleet.VM) { v.Adopted = true }), have: seen("running", foreign), does: reconcile.Adopt, says: fleet.PhaseWorking},
		"to adopt, missing":     {want: wanted(func(v *fleet.VM) { v.Adopted = true }), says: fleet.PhaseFailed},
		"moved by the host":     {want: wanted(), have: seen("running", func(g *inventory.Guest) { p := place("web", 2); g.Placement = &p }), state: known, says: fleet.PhaseRunning},
		"other nodes wanted":    {want: wanted(func(v *fleet.VM) { v.Placement = place("web", 3) }), have: seen("running"), state: known, does: reconcile.Bind, says: fleet.PhaseWorking},
		"from another host":     {want: wanted(), have: seen("running", func(g *inventory.Guest) { g.PlacedFor = &guest.HostIdentity{Name: "h2"} }), state: known, says: fleet.PhaseFailed},
		"earlier state wanted":  {want: wanted(func(v *fleet.VM) { v.Generation, v.Run = 2, fleet.Stopped }), have: seen("running"), state: known, says: fleet.PhaseFailed},
		"migrates to this host": {want: wanted(func(v *fleet.VM) { v.Host, v.Migration = "there", &fleet.Migration{To: "here"} })},
		"has left":              {want: wanted(gone), says: fleet.PhaseGone},
		"has left, a copy":      {want: wanted(gone), have: seen("running")},
		"has left, hidden":      {want: wanted(gone), gap: hidden},
		"has left, of others":   {want: wanted(gone), have: seen("running", foreign), says: fleet.PhaseGone},
		"migrates from here":    {want: wanted(func(v *fleet.VM) { v.Migration = &fleet.Migration{To: "there"} }), have: seen("running"), says: fleet.PhaseRunning},
		"migrated, not stored":  {want: wanted(func(v *fleet.VM) { v.Migration = &fleet.Migration{To: "there"} }), says: fleet.PhaseWorking},
	} {
		t.Run(name, func(t *testing.T) {
			h := &inventory.Host{}
			if c.have != nil {
				h.Guests = append(h.Guests, *c.have)
			}
			if c.gap != "" {
				h.Gaps = append(h.Gaps, inventory.UnseenGap(guest.LibvirtQEMU, "it does not answer"))
			}
			d := reconcile.Decide(reconcile.Request{Now: now, Self: "here", Host: h, State: c.state,
				Desired: fleet.Desired{VMs: []fleet.VM{c.want}}})
			var does reconcile.Kind
			if len(d.Actions) > 0 {
				does = d.Actions[0].Kind
			}
			var says fleet.Phase
			if len(d.Statuses) > 0 {
				says = d.Statuses[0].Phase
			}
			if does != c.does || says != c.says {
				t.Errorf("does %q and reports %q (%+v); want %q and %q", does, says, d.Statuses, c.does, c.says)
			}
		})
	}
}

// The host's own balancing moved the VM: the fleet learns where it is.
func TestDecide_ReportsWhereTheVMIs(t *testing.T) {
	moved := place("web", 2)
	h := &inventory.Host{Guests: []inventory.Guest{*seen("running", func(g *inventory.Guest) { g.Placement = &moved })}}
	d := reconcile.Decide(reconcile.Request{Now: now, Self: "here", Host: h,
		State:   reconcile.State{Known: map[string]reconcile.Known{"web": {UUID: "u", Placement: place("web", 1)}}},
		Desired: fleet.Desired{VMs: []fleet.VM{wanted()}}})
	if p := d.Statuses[0].Placement; !p.Nodes.Equal(moved.Nodes) {
		t.Errorf("reported on nodes %s, want %s", p.Nodes, moved.Nodes)
	}
}

// A VM that reboots without having a domain for a while has not ended: it is neither created again nor gone.
func TestDecide_WaitsForAVMThatReboots(t *testing.T) {
	gone := wanted()
	gone.Delete = true
	bare := seen("running", func(g *inventory.Guest) { g.UUID, g.Spec, g.Placement = "", nil, nil })
	between := inventory.Host{Gaps: []inventory.Gap{{Kind: inventory.GuestGone, Object: inventory.GuestRef("web")}}}
	for i, v := range []fleet.VM{wanted(), gone, wanted(), gone} {
		h := &between
		if i > 1 { // seen as it ended: nothing is known about it
			h = &inventory.Host{Guests: []inventory.Guest{*bare}}
		}
		d := reconcile.Decide(reconcile.Request{Now: now, Self: "here", Desired: fleet.Desired{VMs: []fleet.VM{v}},
			Host:  h,
			State: reconcile.State{Known: map[string]reconcile.Known{"web": {UUID: "u", Placement: place("web", 1)}}}})
		if len(d.Actions) > 0 || d.Statuses[0].Phase != fleet.PhaseWorking || d.Next.IsZero() ||
			d.State.Known["web"].UUID != "u" {
			t.Errorf("%d, delete %v: %+v", i, v.Delete, d)
		}
	}
}

// A VM of which the hypervisor stores nothing is created again if it ran when the host ended. One that ended before,
// and one that another program removed from the hypervisor's configurations, stay away.
func TestDecide_AfterABootOfTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		persistent bool
		boots      []string // of the observations; the VM runs in the first one
		does       reconcile.Kind
	}{
		"it ran when the host ended": {boots: []string{"b1", "b2"}, does: reconcile.Create},
		"it ended":                   {boots: []string{"b1", "b1"}},
		"it ended before the host":   {boots: []string{"b1", "b1", "b2"}},
		"a stored one is gone":       {persistent: true, boots: []string{"b1", "b2"}},
		"the boot was not known":     {boots: []string{"", "b2"}},
		"the boot is not known":      {boots: []string{"b1", ""}},
	} {
		var d reconcile.Decision
		for i, boot := range c.boots {
			h := &inventory.Host{}
			if i == 0 {
				h.Guests = append(h.Guests, *seen("running", func(g *inventory.Guest) { g.Persistent = c.persistent }))
			}
			d = reconcile.Decide(reconcile.Request{Now: now, Self: "here", Host: h, Boot: boot,
				Desired: fleet.Desired{VMs: []fleet.VM{wanted()}}, State: d.State})
		}
		want := fleet.PhaseFailed
		if c.does != "" {
			want = fleet.PhaseWorking
		}
		if len(d.Actions) > 0 != (c.does != "") || len(d.Actions) > 0 && d.Actions[0].Kind != c.does ||
			d.Statuses[0].Phase != want {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Attempts wait longer and longer, at most minutes, and a change by the users tries at once.
func TestDecide_WaitsAfterFailures(t *testing.T) {
	state, at := reconcile.State{}, now
	decide := func(v fleet.VM) reconcile.Decision {
		return reconcile.Decide(reconcile.Request{Now: at, Self: "here", Host: &inventory.Host{}, State: state,
			Desired: fleet.Desired{VMs: []fleet.VM{v}}})
	}
	var waits []time.Duration
	for range 9 {
		d := decide(wanted())
		if len(d.Actions) != 1 {
			t.Fatalf("no attempt at %v: %+v", at, d)
		}
		state = d.State.Ended(d.Actions[0], at, errors.New("no room"))
		d = decide(wanted())
		if len(d.Actions) != 0 || d.Statuses[0].Phase != fleet.PhaseFailed || d.Statuses[0].Message != "no room" {
			t.Fatalf("tried again at once: %+v", d)
		}
		waits, at = append(waits, d.Next.Sub(at)), d.Next
	}
	if waits[0] != 5*time.Second || waits[1] != 10*time.Second || waits[8] != 5*time.Minute {
		t.Errorf("waits are %v", waits)
	}
	state = decide(wanted()).State.Ended(decide(wanted()).Actions[0], at, errors.New("no room"))
	if d := decide(wanted(func(v *fleet.VM) { v.Generation++ })); len(d.Actions) != 1 {
		t.Errorf("a change does not lead to an attempt: %+v", d)
	}
	at = at.Add(-time.Hour)
	if d := decide(wanted()); len(d.Actions) != 1 {
		t.Errorf("a clock that was set back delays the attempt: %+v", d)
	}
}

// A VM that ends again and again is started less and less often.
func TestDecide_DoesNotRestartInALoop(t *testing.T) {
	state, at, starts := reconcile.State{}, now, 0
	for at.Before(now.Add(10 * time.Minute)) {
		d := reconcile.Decide(reconcile.Request{Now: at, Self: "here", State: state,
			Host:    &inventory.Host{Guests: []inventory.Guest{*seen("shutoff")}},
			Desired: fleet.Desired{VMs: []fleet.VM{wanted()}}})
		state = d.State
		for _, a := range d.Actions {
			starts++
			state = state.Ended(a, at, nil)
		}
		at = at.Add(time.Second)
	}
	if starts < 3 || starts > 10 {
		t.Errorf("%d starts in ten minutes, want a few", starts)
	}
}

// Actions that free resources begin first.
func TestDecide_FreesFirst(t *testing.T) {
	a, b := wanted(), wanted(func(v *fleet.VM) { v.Delete = true })
	a.Name = "aaa"
	d := reconcile.Decide(reconcile.Request{Now: now, Self: "here",
		Host:    &inventory.Host{Guests: []inventory.Guest{*seen("running")}},
		Desired: fleet.Desired{VMs: []fleet.VM{a, b}}})
	if len(d.Actions) != 2 || d.Actions[0].Kind != reconcile.Delete {
		t.Errorf("actions are %+v, want delete, then create", d.Actions)
	}
}
