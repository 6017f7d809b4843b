package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// small is a VM that fits anywhere; cells is one that sees two cells on huge pages, for
// which the target's pools must grow.
var (
	small = guest.Spec{Name: "web1", VCPUs: 2, Memory: 256 * mib}
	cells = guest.Spec{Name: "db1", VCPUs: 4, Memory: 256 * mib, PageSize: 2 * mib,
		Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}}
)

func TestAct_MigratesAndVerifies(t *testing.T) {
	for _, spec := range []guest.Spec{small, cells} {
		t.Run(spec.Name, func(t *testing.T) {
			p := newPair(t, t.TempDir(), spec)
			p.decide(1)
			for _, step := range []struct {
				on   *machine
				want fleet.MigrationPhase
			}{
				{p.from, ""}, {p.to, fleet.MigrationPrepared}, {p.to, fleet.MigrationPrepared},
				{p.from, fleet.MigrationGone}, {p.to, fleet.MigrationArrived}, {p.to, fleet.MigrationArrived},
			} {
				if err := p.act(step.on); err != nil {
					t.Fatal(err)
				}
				if step.on.status.Phase != step.want {
					t.Fatalf("%s reports %q, not %q", step.on.name, step.on.status.Phase, step.want)
				}
				if step.want == fleet.MigrationPrepared {
					p.serve()
				}
			}
			if p.to.last.Transfer.Downtime <= 0 || p.from.last.Transfer.Copied == 0 {
				t.Errorf("figures: %+v, %+v", p.from.last.Transfer, p.to.last.Transfer)
			}
			p.serve()
			p.finish()
			if p.vm.Host != "beta" {
				t.Errorf("the VM is on %s", p.vm.Host)
			}
		})
	}
}

// What users ask for in the record is what the hypervisor of the source is asked for.
func TestAct_MigratesAsTheRecordSays(t *testing.T) {
	for _, options := range []fleet.MigrationOptions{
		{}, {MaxDowntime: 50}, {PostCopy: true}, {CopyStorage: true}, {MaxDowntime: 1, CopyStorage: true},
	} {
		t.Run(options.String(), func(t *testing.T) {
			p := newPair(t, t.TempDir(), small)
			p.decide(1)
			p.vm.Migration.Options = options
			p.finish()
			begun := p.from.Departures()
			if len(begun) != 1 || p.vm.Host != "beta" {
				t.Fatalf("%d migrations began, and the VM is on %s", len(begun), p.vm.Host)
			}
			got := begun[0]
			if got.MaxDowntime != time.Duration(options.MaxDowntime)*time.Millisecond ||
				got.PostCopy != options.PostCopy || got.CopyStorage != options.CopyStorage {
				t.Errorf("the hypervisor is asked for %+v, not %+v", got, options)
			}
		})
	}
}

// answers is a hypervisor that answers with these presences before it says what is true.
type answers struct {
	migrate.Port
	presences []guest.Presence
}

func (a *answers) Presence(ctx context.Context, name string) (guest.Presence, error) {
	if len(a.presences) == 0 {
		return a.Port.Presence(ctx, name)
	}
	p := a.presences[0]
	a.presences = a.presences[1:]
	return p, nil
}

// An arriving VM that is destroyed looks for a moment like one that shuts down, and may end while the target
// verifies it. A target that reported its arrival then would get the VM from the record, and start it again
// while the source runs it.
// A VM that has arrived and was shut down before the fleet heard of it has arrived, also if the daemon was restarted.
func TestAct_AVMThatWasShutDownSinceHasArrived(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		p := newPair(t, t.TempDir(), small)
		p.decide(1)
		for _, on := range []*machine{p.to, p.from, p.to} {
			if err := p.act(on); err != nil {
				t.Fatal(err)
			}
			if p.vm.Migration.Ready == nil {
				p.serve()
			}
		}
		if p.to.isOpen(t) {
			t.Fatal("the target's part is open")
		}
		if err := p.to.PowerOff(t.Context(), p.vm.Name); err != nil {
			t.Fatal(err)
		}
		if restarts {
			if err := p.to.restart(); err != nil {
				t.Fatal(err)
			}
		}
		p.vm.Migration.Cancel = "the source has the VM no more"
		p.to.status = fleet.MigrationStatus{}
		if err := p.act(p.to); err != nil || p.to.status.Phase != fleet.MigrationArrived {
			t.Errorf("the target reports %q, %v", p.to.status.Phase, err)
		}
	}
}

func TestAct_AVMThatIsDestroyedOnTheWayHasNotArrived(t *testing.T) {
	for _, seen := range []guest.Presence{guest.Changing, guest.Runs} {
		t.Run(seen.String(), func(t *testing.T) {
			p := newPair(t, t.TempDir(), small)
			p.decide(1)
			if err := p.act(p.to); err != nil {
				t.Fatal(err)
			}
			p.serve()
			p.to.daemon.Port = &answers{p.to.daemon.Port, []guest.Presence{seen}}
			part, _, err := p.to.daemon.Act(t.Context(), &p.vm, nil)
			if err == nil || part.Status.Phase != "" {
				t.Errorf("the target reports %q, %v", part.Status.Phase, err)
			}
			p.from.daemon.Port = &answers{p.from.daemon.Port, []guest.Presence{guest.Changing}}
			part, _, err = p.from.daemon.Act(t.Context(), &p.vm, nil)
			if err == nil || part.Status.Phase != "" {
				t.Errorf("the source reports %q, %v", part.Status.Phase, err)
			}
			p.finish()
		})
	}
}

// TestAct_SurvivesAFaultAtEveryCall: whatever call fails, on whichever host, and however: the
// VM runs on one host, the one of the record, and nothing stays claimed.
func TestAct_SurvivesAFaultAtEveryCall(t *testing.T) {
	for _, spec := range []guest.Spec{small, cells} {
		for _, on := range []string{"source", "target"} {
			for _, kind := range []string{"fails", "answer lost", "killed", "killed after"} {
				t.Run(spec.Name+"/"+on+"/"+kind, func(t *testing.T) {
					folder := t.TempDir()
					for n := 1; ; n++ {
						p := newPair(t, folder, spec)
						p.decide(1)
						reached := p.breakAt(on, kind, n)
						for range 3 {
							_ = errors.Join(p.act(p.to), p.act(p.from)) // what is true is checked afterwards
							p.serve()
						}
						p.finish()
						if t.Failed() {
							t.Fatalf("with a fault at call %d", n)
						}
						if !*reached {
							if n < 10 {
								t.Errorf("only %d calls", n)
							}
							return
						}
					}
				})
			}
		}
	}
}

// breakAt makes one call of a host fail; reached says whether it was made.
func (p *pair) breakAt(on, kind string, n int) (reached *bool) {
	m, reached := p.from, new(bool)
	if on == "target" {
		m = p.to
	}
	do := func() error {
		*reached = true
		if kind == "killed" || kind == "killed after" {
			m.dead.Store(true)
			return nil
		}
		return errors.New("fault")
	}
	if kind == "fails" || kind == "killed" {
		p.inject(m, fake.Fault{Before: fake.Nth(n, do)})
	} else {
		p.inject(m, fake.Fault{After: fake.Nth(n, do)})
	}
	return reached
}

// The source cannot know what the target has done once all memory is there: it waits for the
// record, and removes only a copy that is paused.
func TestAct_UndecidedWaitsForTheRecord(t *testing.T) {
	for _, c := range []struct {
		name, at string
		on       string
		after    bool
		ends     string
	}{
		{"the target runs it", "MigrateFinish", "beta", true, "beta"},
		{"the target runs it, unconfirmed", "MigrateConfirm", "alpha", false, "beta"},
		{"the target does not run it", "MigrateFinish", "beta", false, "alpha"},
		{"the connection broke first", "MigrateSwitch", "alpha", true, "alpha"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, t.TempDir(), small)
			p.decide(1)
			fails := fake.NthOf(c.at, 1, func() error { return errors.New("fault") })
			for _, m := range []*machine{p.from, p.to} {
				if m.name != c.on {
					continue
				}
				if c.after {
					p.inject(m, fake.Fault{After: fails})
				} else {
					p.inject(m, fake.Fault{Before: fails})
				}
			}
			if err := p.act(p.to); err != nil {
				t.Fatal(err)
			}
			p.serve()
			if err := p.act(p.from); err == nil || p.from.status.Phase != fleet.MigrationUndecided {
				t.Fatalf("%+v, %v", p.from.status, err)
			}
			for range 3 {
				if err := p.act(p.from); err != nil || p.from.status.Phase != fleet.MigrationUndecided {
					t.Fatalf("without the record: %+v, %v", p.from.status, err)
				}
			}
			p.finish()
			if p.vm.Host != c.ends {
				t.Errorf("it is on %s, not on %s", p.vm.Host, c.ends)
			}
		})
	}
}

// The record names the target: the source's desired state has the VM no more. The paused copy
// goes once the target's hypervisor says that it runs the VM, and not before.
func TestForgotten_RemovesAPausedCopyOnlyIfTheTargetRunsTheVM(t *testing.T) {
	for _, at := range []string{"MigrateSwitch", "MigrateConfirm"} {
		p := newPair(t, t.TempDir(), small)
		p.decide(1)
		if err := p.act(p.to); err != nil {
			t.Fatal(err)
		}
		p.serve()
		fails := fake.NthOf(at, 1, func() error { return errors.New("fault") })
		runs := at == "MigrateConfirm"
		if runs {
			p.inject(p.from, fake.Fault{Before: fails})
		} else {
			p.inject(p.from, fake.Fault{After: fails})
		}
		if err := p.act(p.from); err == nil || p.from.status.Phase != fleet.MigrationUndecided {
			t.Fatalf("%+v, %v", p.from.status, err)
		}
		if open, err := p.from.daemon.Open(); err != nil || !slices.Equal(open, []string{small.Name}) {
			t.Errorf("open are %v, %v", open, err)
		}
		err := p.from.daemon.Forgotten(t.Context(), small.Name)
		if _, left := p.from.Guest(small.Name); left == runs || (err == nil) != runs {
			t.Errorf("after a fault at %s: the copy is left: %v; %v", at, left, err)
		}
		if runs {
			p.finish()
		}
	}
}

// TestAct_RefusesAPlacementThatDoesNotFit: the room was taken since the fleet decided.
func TestAct_RefusesAPlacementThatDoesNotFit(t *testing.T) {
	p := newPair(t, t.TempDir(), cells)
	p.decide(1)
	for node := range p.vm.Migration.Placement.Nodes.All() {
		p.to.Fill(node, 0)
	}
	if err := p.act(p.to); err == nil || p.to.status.Phase != fleet.MigrationRefused || p.to.status.Arrival != nil {
		t.Fatalf("%+v, %v", p.to.status, err)
	}
	p.serve()
	p.finish()
	if p.vm.Host != "alpha" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}

// Another VM gets CPUs for itself on the nodes of a VM that shares them, and that is about to arrive: before the target
// claims its room, while the target's daemon is killed, or while the VM is copied. The VM arrives, on the other CPUs.
func TestAct_LeavesCPUsThatAnotherVMGot(t *testing.T) {
	for _, when := range []string{"before the claim", "at a restart", "during the copy"} {
		t.Run(when, func(t *testing.T) {
			p := newPair(t, t.TempDir(), small)
			p.decide(1)
			node, _ := p.vm.Migration.Placement.Nodes.First()
			var own topology.CPUSet
			another := func() {
				t.Helper()
				created, err := p.to.daemon.Create(t.Context(), operate.CreateRequest{Render: operatetest.Render,
					Spec: operatetest.Spec(t, guest.Spec{Name: "alone", VCPUs: 1, Memory: 64 * mib,
						CPU:    guest.CPUSpec{Binding: guest.CPUExclusive, Emulator: guest.HelperNone},
						Limits: guest.Limits{Nodes: topology.SetOf(node)}})})
				if err != nil {
					t.Fatal(err)
				}
				own = created.Placement.Exclusive()
			}
			if when == "before the claim" {
				another()
			}
			if err := p.act(p.to); err != nil || p.to.status.Phase != fleet.MigrationPrepared {
				t.Fatalf("%+v, %v", p.to.status, err)
			}
			if when != "before the claim" {
				another()
			}
			if when == "at a restart" {
				if err := p.to.restart(); err != nil {
					t.Fatal(err)
				}
			}
			p.serve()
			if err := p.act(p.from); err != nil {
				t.Fatal(err)
			}
			if err := p.act(p.to); err != nil || p.to.status.Phase != fleet.MigrationArrived {
				t.Fatalf("%+v, %v", p.to.status, err)
			}
			g, ok := p.to.Guest(small.Name)
			if !ok || own.IsEmpty() {
				t.Fatalf("%+v; CPUs of another VM: %v", g, own)
			}
			for _, thread := range g.Seen.Threads {
				if thread.VCPU != nil && thread.Affinity.Intersects(own) {
					t.Errorf("vCPU %d may run on CPUs %v, and %v are another VM's", *thread.VCPU, thread.Affinity, own)
				}
			}
		})
	}
}

// The target makes the files that the hypervisor does not copy before the source may send the VM. If it cannot, it
// takes nothing.
func TestAct_TheTargetMakesFilesFirst(t *testing.T) {
	p := newPair(t, t.TempDir(), cells)
	p.decide(1)
	p.vm.Migration.Options.CopyStorage = true
	failed, made := errors.New("the disk is full"), ""
	p.to.daemon.MakeFiles = func(_ context.Context, vm *fleet.VM) error { made = vm.Name; return failed }
	if err := p.act(p.to); !errors.Is(err, failed) || p.to.status.Phase != fleet.MigrationRefused {
		t.Fatalf("%+v, %v", p.to.status, err)
	}
	if claims, err := p.to.daemon.Ledger.Claims(); err != nil || len(claims) > 0 || p.to.isOpen(t) {
		t.Errorf("claims %+v, %v; an open effect: %v", claims, err, p.to.isOpen(t))
	}
	failed = nil
	if err := p.act(p.to); err != nil || made != p.vm.Name || p.to.status.Phase != fleet.MigrationPrepared {
		t.Errorf("%q, %+v, %v", made, p.to.status, err)
	}
	made = ""
	if err := p.act(p.to); err != nil || made != "" {
		t.Errorf("made again: %q, %v", made, err)
	}
	p.serve()
	p.finish()
	if p.vm.Host != "beta" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}

// A VM on storage that both hosts share has its files.
func TestAct_TheTargetMakesNoFilesOnSharedStorage(t *testing.T) {
	p := newPair(t, t.TempDir(), cells)
	p.decide(1)
	p.to.daemon.MakeFiles = func(context.Context, *fleet.VM) error { return errors.New("called") }
	if err := p.act(p.to); err != nil || p.to.status.Phase != fleet.MigrationPrepared {
		t.Errorf("%+v, %v", p.to.status, err)
	}
}

// mirrored is a VM that hands CPUs over.
var mirrored = guest.Spec{Name: "m1", Memory: 512 * mib, CPU: guest.CPUSpec{Sharing: guest.SharingHandoff}}

// A VM that hands CPUs over stays where it runs: the target does not take it.
func TestAct_TheTargetRefusesAMirroredVM(t *testing.T) {
	p := newPair(t, t.TempDir(), mirrored)
	p.decide(1)
	err := p.act(p.to)
	if !errors.Is(err, guest.ErrMirrored) || p.to.status.Phase != fleet.MigrationRefused || p.to.status.Arrival != nil {
		t.Fatalf("%+v, %v", p.to.status, err)
	}
	if !strings.Contains(p.to.status.Message, "mirrors the CPUs of its host") {
		t.Errorf("the reason is %q", p.to.status.Message)
	}
	if claims, err := p.to.daemon.Ledger.Claims(); err != nil || len(claims) > 0 || p.to.isOpen(t) {
		t.Errorf("claims %+v, %v; an open effect: %v", claims, err, p.to.isOpen(t))
	}
	p.serve()
	p.finish()
	if p.vm.Host != "alpha" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}

// The source does not send it either, also if a target of an older version is ready for it, and also if
// the fleet's record does not say what the VM is.
func TestAct_TheSourceKeepsAMirroredVM(t *testing.T) {
	p := newPair(t, t.TempDir(), mirrored)
	p.decide(1)
	p.vm.Spec = operatetest.Spec(t, guest.Spec{Name: mirrored.Name, VCPUs: 2, Memory: 512 * mib})
	p.vm.Migration.Placement.Handoff = nil
	p.vm.Migration.Ready = &fleet.Arrival{URI: p.to.daemon.URI}
	err := p.act(p.from)
	if !errors.Is(err, guest.ErrMirrored) || p.from.status.Phase != fleet.MigrationStays {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	if claims, err := p.from.daemon.Ledger.Claims(); err != nil || len(claims) > 0 || p.from.isOpen(t) {
		t.Errorf("claims %+v, %v; an open effect: %v", claims, err, p.from.isOpen(t))
	}
	if !p.from.Executes(mirrored.Name) || p.to.Executes(mirrored.Name) {
		t.Error("the VM does not run on its host alone")
	}
}

// A name that is taken on the target is another VM: it is not touched.
func TestAct_RefusesANameThatIsTaken(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	other := fake.Define(operatetest.Spec(t, small), p.vm.Placement)
	if err := p.to.Add(other); err != nil {
		t.Fatal(err)
	}
	p.to.Vanish(small.Name) // it is shut off
	if err := p.act(p.to); err == nil || p.to.status.Phase != fleet.MigrationRefused {
		t.Fatalf("%+v, %v", p.to.status, err)
	}
	if _, there := p.to.Guest(small.Name); !there {
		t.Error("the other VM was removed")
	}
}

// What a user cancels before the copy begins never begins, even if the source learns of the target's
// readiness later.
func TestAct_CancelledDoesNotBegin(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	p.vm.Migration.Cancel = "alice changed her mind"
	if err := p.act(p.from); err != nil || p.from.status.Phase != fleet.MigrationStays {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	p.finish()
	if p.vm.Host != "alpha" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}

// A copy that ended without the VM is not begun again with the same record: the source may
// get that record many times.
func TestAct_FailedIsNotRepeated(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	p.inject(p.from, fake.Fault{Before: fake.NthOf("MigrateCopy", 1, func() error { return errors.New("fault") })})
	if err := p.act(p.from); err == nil || p.from.status.Phase != fleet.MigrationStays {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	p.from.fault = fake.Fault{}
	if err := p.act(p.from); err != nil || p.from.status.Phase != fleet.MigrationStays || p.from.status.Message == "" {
		t.Fatalf("the second time: %+v, %v", p.from.status, err)
	}
	p.finish()
	p.decide(2)
	p.finish()
	if p.vm.Host != "beta" {
		t.Errorf("a new migration ends on %s", p.vm.Host)
	}
}

// A user stops the copy: the VM stays, and the room on the target is free.
func TestAct_EndOfTheContextAborts(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	ctx, cancel := context.WithCancel(t.Context())
	p.inject(p.from, fake.Fault{Before: fake.NthOf("MigrateCopy", 1, func() error { cancel(); return nil })})
	part, _, err := p.from.daemon.Act(ctx, &p.vm, nil)
	if !errors.Is(err, context.Canceled) || part.Status.Phase != fleet.MigrationStays {
		t.Fatalf("%+v, %v", part.Status, err)
	}
	p.from.status = part.Status
	p.finish()
}

// TestMigrations_LeaveOneRunningVM draws migrations back and forth with faults, kills,
// cancellations and hosts that act in any order.
func TestMigrations_LeaveOneRunningVM(t *testing.T) {
	folder := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(rt, folder, rapid.SampledFrom([]guest.Spec{small, cells}).Draw(rt, "VM"))
		for number := range rapid.IntRange(1, 3).Draw(rt, "migrations") {
			p.decide(number + 1)
			for range rapid.IntRange(0, 12).Draw(rt, "steps") {
				m := rapid.SampledFrom([]*machine{p.from, p.to}).Draw(rt, "host")
				switch rapid.IntRange(0, 9).Draw(rt, "event") {
				case 0, 1, 2, 3, 4:
					_ = p.act(m) // what is true is checked afterwards
				case 5, 6:
					p.serve()
				case 7:
					p.draw(rt, m)
				case 8:
					_ = m.restart()
				case 9:
					if p.vm.Migration != nil && rapid.Bool().Draw(rt, "cancelled") {
						p.vm.Migration.Cancel = "drawn"
					}
				}
				if p.vm.Migration == nil {
					break
				}
			}
			p.finish()
		}
	})
}

// draw installs a fault at one of the next calls of a host.
func (p *pair) draw(rt *rapid.T, m *machine) {
	n := rapid.IntRange(1, 30).Draw(rt, "call")
	kill := rapid.Bool().Draw(rt, "killed")
	do := func() error {
		if kill {
			m.dead.Store(true)
			return nil
		}
		return fmt.Errorf("fault at call %d", n)
	}
	if rapid.Bool().Draw(rt, "after") {
		p.inject(m, fake.Fault{After: fake.Nth(n, do)})
	} else {
		p.inject(m, fake.Fault{Before: fake.Nth(n, do)})
	}
}

// libvirt continues a copy whose daemon was killed: the new one waits for its end.
func TestAct_WaitsForACopyOfAKilledDaemon(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	copying, goOn, ended := make(chan bool), make(chan bool), make(chan bool)
	p.inject(p.from, fake.Fault{Before: fake.NthOf("MigrateCopy", 1, func() error {
		close(copying)
		<-goOn
		return nil
	})})
	old, record := p.from.daemon, p.vm
	killed := p.from.dead
	go func() {
		defer close(ended)
		_, _, _ = old.Act(context.Background(), &record, nil) // nobody reads the answer of a killed process
	}()
	<-copying
	killed.Store(true)
	if err := p.from.restart(); err != nil {
		t.Fatal(err)
	}
	if err := p.act(p.from); err != nil || p.from.status.Phase != fleet.MigrationCopying {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	close(goOn)
	<-ended
	if err := p.act(p.from); err != nil || p.from.status.Phase != fleet.MigrationGone {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	p.finish()
}

// A VM that somebody else migrated arrives with the intent of the host that it left. That
// names other nodes: nothing here repairs the VM by it, and bind places it for this host.
func TestIntentOfAnotherHostIsNeverRepaired(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	intent, _ := p.from.Intent(small.Name)
	intent.Placement.Nodes = operatetest.Nodes("2")
	intent.Placement.Cells[0].Nodes = intent.Placement.Nodes
	_, err := p.from.Migrate(t.Context(), guest.Departure{Name: small.Name, URI: p.to.daemon.URI, Intent: intent})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := p.to.daemon.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := p.to.daemon.Act(ctx, &p.vm, nil); ok || err != nil {
		t.Errorf("it counts as a migration of the fleet: %v, %v", ok, err)
	}
	inv, err := p.to.daemon.Observe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	g, _ := inv.Guest(small.Name)
	if g.Placement != nil || g.PlacedFor == nil || g.PlacedFor.ID != "id-alpha" {
		t.Fatalf("its placement is %+v, for %+v", g.Placement, g.PlacedFor)
	}
	bound, err := p.to.daemon.Bind(ctx, operate.BindRequest{Name: small.Name})
	if err != nil || bound.Why == nil {
		t.Fatalf("bind used the other host's placement: %+v, %v", bound.Plan, err)
	}
	if now, _ := p.to.Intent(small.Name); now.Host.ID != "id-beta" {
		t.Errorf("its intent is still for %+v", now.Host)
	}
}

// A VM that arrives with the intent of another host, as from an older version on the source, is
// bound to the placement that this host prepared.
func TestAct_ReplacesAForeignIntent(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	foreign, _ := p.from.Intent(small.Name)
	_, err := p.from.Migrate(t.Context(), guest.Departure{Name: small.Name, URI: p.to.daemon.URI, Intent: foreign})
	if err != nil {
		t.Fatal(err)
	}
	p.finish()
	if p.vm.Host != "beta" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}

// A VM has arrived, and its intent is not recorded: the record changed meanwhile, which ends the step, or the
// hypervisor failed. The part stays open, and the next step records the intent. Without it the host would take the VM
// for one that the fleet did not create.
func TestAct_RecordsTheIntentAfterAnInterruption(t *testing.T) {
	transient := errors.New("the hypervisor does not answer")
	for _, c := range []struct {
		name, call string
		nth        int
		fails      error // nil: the step is ended
	}{{"ended at the intent", "Record", 1, nil}, {"failed at the intent", "Record", 1, transient},
		{"ended while it is verified", "Guests", 2, nil}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, t.TempDir(), small)
			p.decide(1)
			if err := p.act(p.to); err != nil {
				t.Fatal(err)
			}
			p.serve()
			foreign, _ := p.from.Intent(small.Name)
			_, err := p.from.Migrate(t.Context(), guest.Departure{Name: small.Name, URI: p.to.daemon.URI, Intent: foreign})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p.inject(p.to, fake.Fault{Before: fake.NthOf(c.call, c.nth, func() error {
				if c.fails == nil {
					cancel()
					return context.Canceled
				}
				return c.fails
			})})
			part, _, err := p.to.daemon.Act(ctx, &p.vm, nil)
			if err == nil {
				t.Errorf("the target reports %+v", part.Status)
			}
			if !p.to.isOpen(t) {
				t.Error("the part of the target has ended")
			}
			p.finish()
			if p.vm.Host != "beta" {
				t.Errorf("the VM is on %s", p.vm.Host)
			}
		})
	}
}

// Another command works on the VM: the copy begins afterwards, and nothing is reported before.
func TestAct_WaitsForOtherCommands(t *testing.T) {
	p := newPair(t, t.TempDir(), small)
	p.decide(1)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	_, _, err := p.from.daemon.Hold(t.Context(), small.Name, func(*inventory.Guest) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.act(p.from); !errors.Is(err, operate.ErrBusy) || p.from.status.Phase != "" {
		t.Fatalf("%+v, %v", p.from.status, err)
	}
	if err := p.from.daemon.Ledger.Release(small.Name); err != nil {
		t.Fatal(err)
	}
	p.finish()
	if p.vm.Host != "beta" {
		t.Errorf("the VM is on %s", p.vm.Host)
	}
}
