package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
)

// part waits until the host reports a phase of a VM's migration.
func (s *fleetServer) part(t *testing.T, name string, want fleet.MigrationPhase) fleet.VMStatus {
	t.Helper()
	var got fleet.VMStatus
	s.until(t, name+" is "+string(want), func(s *fleetServer) bool {
		got = s.statuses[name]
		return got.Migration != nil && got.Migration.Phase == want
	})
	return got
}

// other is a second host, without an agent, on which a VM of the fleet runs.
func (m *member) other(t *testing.T) operatetest.World {
	t.Helper()
	w := operatetest.New(t, square, t.TempDir())
	w.Connect("qemu+tls://fake/system", m.Host)
	m.Connect("qemu+tls://other/system", w.Host)
	return w
}

// The target claims the room and says how it is reached, notices the VM's arrival by itself, and
// has it as one of its own once the record names it.
func TestAgent_ReceivesAMigratingVM(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	other := m.other(t)
	v := m.vm("web", "2")
	if _, err := other.Create(v.Spec); err != nil {
		t.Fatal(err)
	}
	v.Host, v.Generation = "other", 2
	v.Migration = &fleet.Migration{To: "fake", Placement: v.Placement, Began: time.Unix(1e9, 0).UTC()}
	s.want(v)
	prepared := s.part(t, "web", fleet.MigrationPrepared)
	if a := prepared.Migration.Arrival; a == nil || a.URI != "qemu+tls://fake/system" || prepared.Host != "fake" {
		t.Fatalf("%+v", prepared)
	}
	v.Migration.Ready = prepared.Migration.Arrival
	s.want(v)
	intent := guest.Intent{Host: v.Migration.Ready.Host, Spec: v.Spec, Placement: v.Placement}
	if _, err := other.Migrate(t.Context(), guest.Departure{Name: "web", URI: v.Migration.Ready.URI,
		Intent: intent}); err != nil {
		t.Fatal(err)
	}
	arrived := s.part(t, "web", fleet.MigrationArrived)
	if arrived.Downtime <= 0 || arrived.Copied == 0 {
		t.Errorf("%+v", arrived)
	}
	v.Host, v.Migration, v.Generation = "fake", nil, 3
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckInPlace(t, "web")
	m.CheckSettled(t)
	if n := m.creates("web"); n != 0 {
		t.Errorf("it was created %d times", n)
	}
	s.until(t, "the downtime is still reported", func(s *fleetServer) bool {
		got := s.statuses["web"]
		return got.Migration == nil && got.Downtime > 0
	})
}

// The source begins when the target is ready, reports that the VM is gone, and never creates it again.
func TestAgent_SendsAMigratingVM(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	other := m.other(t)
	v := m.vm("web", "2")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	v.Generation, v.Migration = 2, &fleet.Migration{To: "other", Placement: v.Placement, Began: time.Unix(1e9, 0).UTC()}
	s.want(v)
	s.phase(t, "web", fleet.PhaseWorking)
	if !m.Executes("web") {
		t.Fatal("the source began before the target was ready")
	}
	ready := *v.Migration
	ready.Ready = &fleet.Arrival{URI: "qemu+tls://other/system", Host: guest.HostIdentity{Name: "other"}}
	v.Generation, v.Migration = 3, &ready
	s.want(v)
	s.part(t, "web", fleet.MigrationGone)
	if m.Executes("web") || !other.Executes("web") {
		t.Error("it does not run on the target alone")
	}
	m.end()
	m.start() // and a restart changes nothing
	s.part(t, "web", fleet.MigrationGone)
	s.want() // the record names the other host
	s.until(t, "the source forgets it", func(*fleetServer) bool { return true })
	if n := m.creates("web"); n != 1 {
		t.Errorf("it was created %d times", n)
	}
	m.CheckSettled(t)
}

// A source that cannot know whether the target runs the VM waits, also when it is started again, and
// lets the VM run once the record has no migration.
func TestAgent_ResumesAnUndecidedVM(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	m.other(t)
	v := m.vm("web", "2")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.Inject(fake.Fault{After: fake.NthOf("MigrateSwitch", 1, func() error { return errors.New("fault") })})
	v.Generation, v.Migration = 2, &fleet.Migration{To: "other", Placement: v.Placement, Began: time.Unix(1e9, 0).UTC(),
		Ready: &fleet.Arrival{URI: "qemu+tls://other/system", Host: guest.HostIdentity{Name: "other"}}}
	s.want(v)
	s.part(t, "web", fleet.MigrationUndecided)
	m.end()
	m.start()
	s.part(t, "web", fleet.MigrationUndecided)
	if m.Executes("web") {
		t.Error("it runs again before the record says so")
	}
	v.Generation, v.Migration = 3, nil
	s.want(v)
	s.until(t, "it runs", func(*fleetServer) bool { return m.Executes("web") })
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckSettled(t)
}

// The source of a migration has a paused copy, and the target's hypervisor does not run the VM any more: it was deleted
// there, or has gone on. The record names the other host: the source removes its copy, and says so. Another VM that has
// got the name since is none of its business.
func TestAgent_RemovesAPausedCopyOfAVMThatIsElsewhere(t *testing.T) {
	for _, another := range []bool{false, true} {
		s := newServer(t)
		m := joined(t, s)
		other := m.other(t)
		v := m.vm("web", "2")
		v.Created = time.Unix(1e9, 0).UTC()
		s.want(v)
		s.phase(t, "web", fleet.PhaseRunning)
		m.Inject(fake.Fault{Before: fake.NthOf("MigrateConfirm", 1, func() error { return errors.New("fault") })})
		v.Generation, v.Migration = 2, &fleet.Migration{To: "other", Placement: v.Placement,
			Began: time.Unix(1e9, 0).UTC(), Ready: &fleet.Arrival{URI: "qemu+tls://other/system",
				Host: guest.HostIdentity{Name: "other"}}}
		s.want(v)
		s.part(t, "web", fleet.MigrationUndecided)
		if m.Executes("web") || !other.Executes("web") {
			t.Fatal("it does not run on the target alone")
		}
		if err := other.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		v.Generation, v.Migration, v.Host = 3, nil, "other"
		if another { // of the same name, on this host
			v.Generation, v.Host, v.Created = 4, "fake", time.Unix(2e9, 0).UTC()
		}
		s.want(v)
		if another {
			s.phase(t, "web", fleet.PhaseRunning)
			if n := m.creates("web"); n != 2 {
				t.Errorf("the other VM was created %d times: the former one was resumed", n-1)
			}
			m.CheckInPlace(t, "web")
		} else {
			s.phase(t, "web", fleet.PhaseGone)
			if _, left := m.Guest("web"); left {
				t.Error("the paused copy is still there")
			}
		}
		m.CheckSettled(t)
		m.end()
	}
}

// The cancellation of a record ends the copy in progress: the VM stays.
func TestAgent_CancelsACopy(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	m.other(t)
	v := m.vm("web", "2")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	copying := make(chan bool)
	ctx, release := context.WithTimeout(t.Context(), 10*time.Second)
	defer release()
	m.Inject(fake.Fault{Before: fake.NthOf("MigrateCopy", 1, func() error {
		close(copying)
		<-ctx.Done()
		return nil
	})})
	v.Generation, v.Migration = 2, &fleet.Migration{To: "other", Placement: v.Placement, Began: time.Unix(1e9, 0).UTC(),
		Ready: &fleet.Arrival{URI: "qemu+tls://other/system", Host: guest.HostIdentity{Name: "other"}}}
	s.want(v)
	<-copying
	s.part(t, "web", fleet.MigrationCopying)
	cancelled := *v.Migration
	cancelled.Cancel = "alice changed her mind"
	v.Generation, v.Migration = 3, &cancelled
	s.want(v)
	time.Sleep(100 * time.Millisecond) // the follower's context has ended
	release()
	s.part(t, "web", fleet.MigrationStays)
	if !m.Executes("web") {
		t.Error("it does not run")
	}
	v.Generation, v.Migration = 4, nil
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckSettled(t)
}
