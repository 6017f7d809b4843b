package reconcile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Kind says what an action does.
type Kind string

// Kinds of actions, in the order in which they begin: those that free resources first.
const (
	Delete  Kind = "delete"
	Stop    Kind = "stop"
	Bind    Kind = "bind"    // to the nodes that the fleet wants
	Adopt   Kind = "adopt"   // bind a VM that Numavisor did not create
	Start   Kind = "start"   // a VM that exists, on the nodes that the fleet wants
	Replace Kind = "replace" // a stopped VM by one of another size, and start that
	Create  Kind = "create"
)

var order = []Kind{Delete, Stop, Bind, Adopt, Start, Replace, Create}

// Action is one action on one VM.
type Action struct {
	Kind Kind
	VM   fleet.VM
	// UUID is that of the guest that was found to be the fleet's; empty: there is none.
	UUID string
}

// Request is the input of Decide.
type Request struct {
	Now     time.Time
	Self    string // the host's name in the fleet
	Host    *inventory.Host
	Boot    string // changes when the host boots; empty: not known
	Desired fleet.Desired
	// Busy are the VMs with an action that runs, or that ended after the observation of Host began.
	Busy  map[string]bool
	State State
	// Reported are the last statuses of VMs.
	Reported map[string]fleet.VMStatus
}

// Decision is the output of Decide.
type Decision struct {
	Actions  []Action
	Statuses []fleet.VMStatus // of VMs of the desired state that are this host's, or have left it; ascending by name
	State    State            // to be stored before the actions begin
	// Next is the time of the next retry, or of the next observation of a VM that starts or ends; zero: there is none.
	Next time.Time
}

// Decide compares the desired state with the host.
func Decide(r Request) Decision {
	d := decider{Request: r, out: Decision{State: r.State.Clone()}}
	wanted := map[string]bool{}
	for i := range r.Desired.VMs {
		v := &r.Desired.VMs[i]
		wanted[v.Name] = true
		switch {
		case v.Host == r.Self:
			d.vm(v)
		case v.Migration == nil:
			d.left(v)
		}
	}
	d.out.State.prune(wanted, r.Busy, r.Host)
	slices.SortStableFunc(d.out.Actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)),
			strings.Compare(a.VM.Name, b.VM.Name))
	})
	slices.SortFunc(d.out.Statuses, func(a, b fleet.VMStatus) int { return strings.Compare(a.Name, b.Name) })
	return d.out
}

type decider struct {
	Request
	out Decision
}

// vm decides about one VM of this host.
func (d *decider) vm(v *fleet.VM) {
	g, exists := d.Host.Guest(v.Name)
	_, claimed := d.Host.Claim(v.Name)
	switch hidden := d.Host.HiddenBy(); {
	case d.Busy[v.Name]:
		d.report(v, fleet.PhaseWorking, "", nil)
	case claimed:
		d.report(v, fleet.PhaseWorking, "it is being created, bound or moved", nil)
	case d.outdated(v):
		d.report(v, fleet.PhaseFailed, "the fleet wants an earlier state than the daemon has carried out already; "+
			"change the VM in the fleet again", nil)
	case !exists && d.Host.ComesOrGoes(v.Name), exists && g.UUID == "" && d.out.State.Known[v.Name].UUID != "":
		d.report(v, fleet.PhaseWorking, "it is starting, rebooting or ending", nil)
		d.lookAgain(d.Now.Add(passing))
	case !exists && len(hidden) > 0:
		d.report(v, fleet.PhaseFailed, "the daemon cannot see all VMs of the host: "+hidden[0].Why, nil)
	case !exists:
		d.missing(v)
	case d.foreign(v, g) != "":
		d.leave(v, g, d.foreign(v, g))
	default:
		d.present(v, g)
	}
}

// left reports that this host has nothing of a VM that has left it. Until then the fleet names the VM, with its host of
// now, so that this host can end its part in the migration: see migrate.Host.Act.
func (d *decider) left(v *fleet.VM) {
	_, claimed := d.Host.Claim(v.Name)
	g, exists := d.Host.Guest(v.Name)
	if d.Busy[v.Name] || claimed || exists && g.Created() || d.Host.ComesOrGoes(v.Name) || len(d.Host.HiddenBy()) > 0 {
		return
	}
	delete(d.out.State.Known, v.Name)
	d.report(v, fleet.PhaseGone, "", nil)
}

// passing is about how long a VM starts, reboots or ends.
const passing = 2 * time.Second

// lookAgain has the host observed again at a time, at the latest.
func (d *decider) lookAgain(at time.Time) {
	if d.out.Next.IsZero() || at.Before(d.out.Next) {
		d.out.Next = at
	}
}

// outdated reports whether a record is older than the one that was carried out: a server
// that was restored from a backup sent it, or one that has not caught up. An earlier record of
// another VM of the name may only start it, as the server's clock may have been set back.
func (d *decider) outdated(v *fleet.VM) bool {
	known, before := d.out.State.Known[v.Name]
	return before && (v.Created.Before(known.Created) && (v.Delete || v.Run == fleet.Stopped) ||
		v.Created.Equal(known.Created) && v.Generation < known.Generation)
}

// missing decides about a VM that the host does not have.
func (d *decider) missing(v *fleet.VM) {
	known, before := d.out.State.Known[v.Name]
	switch {
	case v.Delete:
		delete(d.out.State.Known, v.Name)
		d.report(v, fleet.PhaseGone, "", nil)
	case v.Migration != nil:
		d.report(v, fleet.PhaseWorking, "it migrates", nil)
	case v.Adopted:
		d.report(v, fleet.PhaseFailed, "the VM to adopt is not on this host", nil)
	case v.Run == fleet.Stopped:
		d.report(v, fleet.PhaseStopped, "", nil)
	case before && !known.Begun && known.Created.Equal(v.Created) && known.Generation >= v.Generation &&
		!d.endedWithHost(known):
		known.Boot = "" // it ended by itself, and stays away after the host's next boot, too
		d.out.State.Known[v.Name] = known
		d.report(v, fleet.PhaseFailed, "the VM is not on this host any more: it ended, or another program "+
			"removed it and may run it elsewhere; stop and start it in the fleet to create it again", nil)
	default:
		d.act(Create, v)
	}
}

// endedWithHost reports whether a VM ended because the host did, and no hypervisor has its configuration: it is created
// again, as one that the hypervisor stores is started again.
func (d *decider) endedWithHost(known Known) bool {
	return known.Transient && known.Boot != "" && d.Boot != "" && known.Boot != d.Boot
}

// foreign says why a guest of the VM's name is not the fleet's; empty: it is.
func (d *decider) foreign(v *fleet.VM, g *inventory.Guest) string {
	known, before := d.out.State.Known[v.Name]
	switch {
	case v.Adopted:
		return ""
	case g.PlacedFor != nil:
		return fmt.Sprintf("the VM of this name was placed for host %s, which may run it", g.PlacedFor)
	case before && (known.UUID == g.UUID || known.UUID == "" && g.Created()):
		return ""
	case g.Created() && g.Spec != nil && same(g.Spec, &v.Spec):
		return "" // created by this daemon, which was killed before it stored that
	}
	return "a VM of this name exists on the host that the fleet did not create; rename it, or adopt it"
}

// leave reports a guest that the fleet did not create, and does nothing about it. If Numavisor created
// it, it may be the fleet's all the same.
func (d *decider) leave(v *fleet.VM, g *inventory.Guest, why string) {
	if v.Delete && !g.Created() {
		d.report(v, fleet.PhaseGone, why, nil)
		return
	}
	d.report(v, fleet.PhaseFailed, why, nil)
}

// present decides about a VM of the fleet that the host has.
func (d *decider) present(v *fleet.VM, g *inventory.Guest) {
	known, before := d.out.State.Known[v.Name]
	if before && known.UUID == "" {
		known.UUID = g.UUID
		d.out.State.Known[v.Name] = known
	}
	runs := g.State != "shutoff"
	switch {
	case v.Delete:
		d.act(Delete, v)
	case v.Migration != nil:
		d.running(v, g)
	case v.Run == fleet.Stopped && runs:
		d.act(Stop, v)
	case v.Run == fleet.Stopped:
		d.remember(v, g, known.Placement)
		d.report(v, fleet.PhaseStopped, "", nil)
	case resized(v, g) && runs: // its users have stopped it, resized it and started it again
		d.act(Stop, v)
	case resized(v, g):
		d.act(Replace, v)
	case !runs:
		d.act(Start, v)
	case v.Adopted && !g.Managed:
		d.act(Adopt, v)
	case d.elsewhere(v, g):
		d.act(Bind, v)
	default:
		d.settle(v)
		d.remember(v, g, v.Placement)
		d.running(v, g)
	}
}

// resized says whether the fleet wants another size than the VM was created with.
func resized(v *fleet.VM, g *inventory.Guest) bool {
	return !v.Adopted && g.Spec != nil && (g.Spec.VCPUs != v.Spec.VCPUs || g.Spec.Memory != v.Spec.Memory)
}

// elsewhere says whether a running VM must be bound to other nodes or CPUs.
func (d *decider) elsewhere(v *fleet.VM, g *inventory.Guest) bool {
	if v.Placement.Nodes.IsEmpty() || g.Placement != nil && same(g.Placement, &v.Placement) {
		return false
	}
	known, before := d.out.State.Known[v.Name]
	return !before || known.Begun || g.Placement == nil || !same(&known.Placement, &v.Placement)
}

// remember stores that the VM is as this desired state wants it.
func (d *decider) remember(v *fleet.VM, g *inventory.Guest, p guest.Placement) {
	d.out.State.Known[v.Name] = Known{UUID: g.UUID, Created: v.Created, Generation: v.Generation,
		Placement: p, Transient: !g.Persistent, Boot: d.Boot}
}

// settle forgets attempts to start a VM once it has run for some time.
func (d *decider) settle(v *fleet.VM) {
	tries, tried := d.out.State.Attempts[v.Name]
	if tried && (tries.Failed != "" || d.Now.Sub(tries.Last) >= StableAfter || tries.Generation != v.Generation) {
		delete(d.out.State.Attempts, v.Name)
	}
}

// running reports a VM that runs where it should.
func (d *decider) running(v *fleet.VM, g *inventory.Guest) {
	if g.State == "shutoff" {
		d.report(v, fleet.PhaseStopped, "", nil)
		return
	}
	message, placed := "", g.Placement
	if g.State != "running" {
		message = "it is " + g.State
	}
	if g.Placement != nil && len(g.Seen.Threads) > 0 {
		if wrong := drift.Of(*g, &d.Host.Topology); len(wrong) > 0 {
			message, placed = "not as intended: "+wrong[0].String(), nil
		}
	}
	d.report(v, fleet.PhaseRunning, message, placed)
}

// act begins an action, unless an attempt has failed and the next one is not due.
func (d *decider) act(k Kind, v *fleet.VM) {
	tries := d.out.State.Attempts[v.Name]
	next := tries.next(v.Generation, d.Now)
	if next.IsZero() {
		a := Action{Kind: k, VM: *v}
		if g, exists := d.Host.Guest(v.Name); exists {
			a.UUID = g.UUID
		}
		d.out.Actions = append(d.out.Actions, a)
		d.out.State.begin(a)
		d.report(v, fleet.PhaseWorking, "", nil)
		return
	}
	d.lookAgain(next)
	d.report(v, fleet.PhaseFailed, cmp.Or(tries.Failed, "the VM ended by itself; the daemon starts it again"), nil)
}

// report adds the status of a VM.
func (d *decider) report(v *fleet.VM, phase fleet.Phase, message string, p *guest.Placement) {
	s := fleet.VMStatus{Name: v.Name, Host: d.Self, Generation: v.Generation, Phase: phase, Since: d.Now.UTC(),
		Message: message}
	if last, ok := d.Reported[v.Name]; ok && last.Phase == phase && last.Host == d.Self {
		s.Since, s.Downtime, s.Copied = last.Since, last.Downtime, last.Copied
	}
	if p != nil {
		s.Placement = *p
	}
	d.out.Statuses = append(d.out.Statuses, s)
}

// same compares two values by their JSON form, the form in which one of them was stored.
func same[T any](a, b *T) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Newer reports whether a desired state replaces the present one. Messages of one connection
// may not go back; the first of a connection always counts: a restored server has lower revisions.
func Newer(present, received fleet.Desired, first bool) bool {
	return first || received.Revision >= present.Revision
}
