package agent

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/migrate"
)

// Migrations are the host's part in live migrations (migrate.Host).
type Migrations interface {
	Act(ctx context.Context, vm *fleet.VM, progress func(fleet.MigrationStatus)) (migrate.Part, bool, error)
	// Forgotten ends a part whose VM the desired state does not have any more.
	Forgotten(ctx context.Context, name string) error
	// Open names the VMs with a part that has no end.
	Open() ([]string, error)
}

// follower carries out this host's part of one VM's migration, for one record of it. A later
// record ends it, and gets a follower of its own.
type follower struct {
	vm     fleet.VM
	gone   bool // the desired state does not have the VM
	stop   context.CancelFunc
	over   bool // its goroutine has ended
	status fleet.MigrationStatus
}

// wants says whether a record differs from the follower's in what a migration depends on.
func (f *follower) wants(v *fleet.VM) bool {
	if v == nil || f.gone {
		return v == nil && f.gone
	}
	return f.vm.Host == v.Host && reflect.DeepEqual(f.vm.Migration, v.Migration)
}

// followMigrations begins and ends followers by the desired state, and marks VMs whose hypervisor's
// state is about to change as busy. It returns false if this host's open parts are not known: a VM
// that is paused for a migration would then look like one to be started.
func (l *loop) followMigrations(busy map[string]bool) bool {
	if l.Migrations == nil {
		return true
	}
	open, err := l.Migrations.Open()
	if err != nil {
		l.Log.Error("nothing is done for the fleet, as the journal cannot be read", "error", err)
		return false
	}
	wanted := map[string]*fleet.VM{}
	for _, name := range open {
		wanted[name] = nil
	}
	for i := range l.desired.VMs {
		v := &l.desired.VMs[i]
		if _, isOpen := wanted[v.Name]; isOpen || v.Migration != nil {
			wanted[v.Name] = v
		}
	}
	maps.DeleteFunc(l.transfers, func(name string, _ guest.Transfer) bool {
		return !slices.ContainsFunc(l.desired.VMs, func(v fleet.VM) bool { return v.Name == name })
	})
	for name, f := range l.followers {
		v, still := wanted[name]
		switch {
		case still && f.wants(v):
			delete(wanted, name)
		case !f.over:
			f.stop()
			delete(wanted, name) // once it has ended, the next observation begins another one
		default:
			delete(l.followers, name)
		}
	}
	for name, v := range wanted {
		if !l.running[name] {
			l.follow(name, v)
		}
		busy[name] = true
	}
	for name, f := range l.followers {
		busy[name] = busy[name] || !f.over
	}
	return true
}

// follow begins a follower.
func (l *loop) follow(name string, v *fleet.VM) {
	f := &follower{vm: fleet.VM{Name: name}, gone: v == nil}
	if v != nil {
		f.vm = *v
	}
	ctx, stop := context.WithCancel(l.ctx)
	f.stop = stop
	l.followers[name] = f
	record := f.vm
	l.workers.Go(func() {
		defer stop()
		l.migrate(ctx, record, f)
		l.tell(func(l *loop) { //nolint:contextcheck // the loop has the context of Run
			f.over = true
			l.stale[name] = true
			l.observe()
		})
	})
}

// migrate takes one step after the other until the part is over for this record.
func (a *Agent) migrate(ctx context.Context, vm fleet.VM, f *follower) {
	for {
		var over bool
		if f.gone {
			err := a.Migrations.Forgotten(ctx, vm.Name)
			if over = err == nil; !over {
				a.Log.Warn("a migration is not concluded yet", "vm", vm.Name, "error", err)
			}
		} else {
			part, has, err := a.Migrations.Act(ctx, &vm, func(s fleet.MigrationStatus) {
				a.tell(func(l *loop) { l.publish(f, s, guest.Transfer{}) })
			})
			if err != nil && ctx.Err() == nil {
				a.Log.Warn("migrating", "vm", vm.Name, "phase", part.Status.Phase, "error", err)
			}
			a.tell(func(l *loop) { l.publish(f, part.Status, part.Transfer) })
			over = !has && err == nil || isLast(part.Status.Phase)
		}
		if over || ctx.Err() != nil {
			return
		}
		sleep(ctx, min(time.Second, a.Look))
	}
}

// isLast reports whether a host does nothing more in a migration until its record changes.
func isLast(p fleet.MigrationPhase) bool {
	switch p {
	case fleet.MigrationGone, fleet.MigrationArrived, fleet.MigrationStays, fleet.MigrationGivenBack,
		fleet.MigrationRefused:
		return true
	case fleet.MigrationPrepared, fleet.MigrationCopying, fleet.MigrationUndecided:
	}
	return false
}

// publish records a status of a migration, and sends it.
func (l *loop) publish(f *follower, s fleet.MigrationStatus, t guest.Transfer) {
	if s.Phase == "" || l.followers[f.vm.Name] != f {
		return
	}
	f.status = s
	if s.Phase == fleet.MigrationArrived && t != (guest.Transfer{}) {
		l.transfers[f.vm.Name] = t
	}
	status := l.reported[f.vm.Name]
	if status.Name == "" {
		status = fleet.VMStatus{Name: f.vm.Name, Host: l.Member.Host, Generation: f.vm.Generation,
			Phase: fleet.PhaseWorking, Since: time.Now().UTC()}
	}
	l.reported[f.vm.Name] = l.withPart(status)
	l.outbox.status(l.reported[f.vm.Name])
}

// withParts adds the parts of migrations to the statuses, and the statuses of VMs that migrate to
// this host.
func (l *loop) withParts(statuses []fleet.VMStatus) []fleet.VMStatus {
	missing := maps.Clone(l.followers)
	for i := range statuses {
		delete(missing, statuses[i].Name)
		statuses[i] = l.withPart(statuses[i])
	}
	for name, f := range missing {
		if f.status.Phase == "" || f.gone {
			continue
		}
		s := fleet.VMStatus{Name: name, Host: l.Member.Host, Generation: f.vm.Generation, Phase: fleet.PhaseWorking,
			Since: time.Now().UTC()}
		if last, ok := l.reported[name]; ok {
			s.Since = last.Since
		}
		statuses = append(statuses, l.withPart(s))
	}
	slices.SortFunc(statuses, func(a, b fleet.VMStatus) int { return strings.Compare(a.Name, b.Name) })
	return statuses
}

func (l *loop) withPart(s fleet.VMStatus) fleet.VMStatus {
	s.Migration = nil
	if f, ok := l.followers[s.Name]; ok && f.status.Phase != "" {
		part := f.status
		s.Migration = &part
	}
	if t, ok := l.transfers[s.Name]; ok {
		s.Downtime, s.Copied = t.Downtime, t.Copied
	}
	return s
}
