package migrate_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib = topology.MiB
	gib = topology.GiB
)

// machine is one host of the test with its daemon, which may be killed and started again.
type machine struct {
	*fake.Host
	name   string
	folder string
	policy policy.Policy
	book   *operatetest.Book
	fault  fake.Fault // of the test, asked while the daemon lives
	pid    int
	dead   *atomic.Bool
	daemon *migrate.Host
	status fleet.MigrationStatus // the last one that it reported
	last   migrate.Part
}

// pair is two hosts, a VM on the first of them, and the fleet's record of it.
type pair struct {
	t        operatetest.T
	from, to *machine
	vm       fleet.VM
	twice    error // the VM ran on both at some moment
}

var errKilled = errors.New("killed")

func newMachine(t operatetest.T, folder, name, shape string) *machine {
	t.Helper()
	own, err := os.MkdirTemp(folder, name)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Host: fake.MustNew(shape), name: name, folder: own, book: &operatetest.Book{}, pid: 100}
	m.boot()
	return m
}

// boot starts the host's daemon, after the former one was killed.
func (m *machine) boot() {
	m.pid++
	dead := new(atomic.Bool)
	m.dead = dead
	self := claim.Process{PID: m.pid, StartTicks: uint64(m.pid)}
	joined := hosttest.Join(m.Host, m.folder, func() time.Time { return time.Unix(1700000000, 0) })
	host := &joined.Host
	host.Self, host.By, host.Journal, host.Policy = self, "fleet", m.book, m.policy
	host.Ledger.Alive = func(p claim.Process) bool { return p == self && !dead.Load() }
	host.Sources.Claims = host.Ledger.Claims
	host.Sources.HostName = func() (string, error) { return m.name, nil }
	host.Sources.HostID = func() (string, error) { return "id-" + m.name, nil }
	m.book.Fail = func(int, journal.Entry) error {
		if dead.Load() {
			return errKilled
		}
		return nil
	}
	m.daemon = &migrate.Host{Host: host, Port: m.Host, Name: m.name, URI: "qemu+tls://" + m.name + "/system"}
}

// restart starts the daemon after a kill, as package daemon does.
func (m *machine) restart() error {
	m.boot()
	ctx := context.Background()
	return errors.Join(m.daemon.CloseInterrupted(ctx), m.daemon.Recover(ctx))
}

func (m *machine) isOpen(t operatetest.T) bool {
	t.Helper()
	open, err := m.daemon.Open()
	if err != nil {
		t.Fatal(err)
	}
	return len(open) > 0
}

// inject installs the test's fault. A daemon that was killed does nothing any more; libvirt continues.
func (p *pair) inject(m *machine, f fake.Fault) {
	m.fault = f
	m.Inject(fake.Fault{
		Before: func(c fake.Call) error {
			p.watch()
			if m.dead.Load() && !strings.HasPrefix(c.Method, "Migrate") {
				return errKilled
			}
			if m.fault.Before != nil {
				if err := m.fault.Before(c); err != nil {
					return err
				}
			}
			if m.dead.Load() && !strings.HasPrefix(c.Method, "Migrate") {
				return errKilled
			}
			return nil
		},
		After: func(c fake.Call) error {
			p.watch()
			var err error
			if m.fault.After != nil {
				err = m.fault.After(c)
			}
			if c.Method == "GrowPool" || c.Method == "ShrinkPool" {
				return nil // a write to sysfs returns with the kernel's answer, which cannot be lost
			}
			return err
		},
	})
}

// watch notices a VM that runs twice.
func (p *pair) watch() {
	if p.from.Executes(p.vm.Name) && p.to.Executes(p.vm.Name) {
		p.twice = errors.New("the VM runs on both hosts")
	}
}

// newPair creates a VM on the first of two connected hosts, and a migration of it.
func newPair(t operatetest.T, folder string, spec guest.Spec) *pair {
	t.Helper()
	const shape = "nodes:4 cores:4 memory:4G huge:2M=16 square distances:10,16,28"
	p := &pair{t: t, from: newMachine(t, folder, "alpha", shape), to: newMachine(t, folder, "beta", shape)}
	if spec.IsHandoff() {
		for _, m := range []*machine{p.from, p.to} {
			m.policy.Handoff.CPUs = topology.MustParseSet[topology.CPUID]("1-15")
			m.daemon.Policy = m.policy
		}
	}
	p.from.Connect(p.to.daemon.URI, p.to.Host)
	p.to.Connect(p.from.daemon.URI, p.from.Host)
	spec = operatetest.Spec(t, spec)
	created, err := p.from.daemon.Create(context.Background(),
		operate.CreateRequest{Spec: spec, Render: operatetest.Render})
	if err != nil {
		t.Fatal(err)
	}
	p.vm = fleet.VM{Name: spec.Name, Spec: spec, Host: "alpha", Placement: created.Placement}
	if _, err := p.from.Touch(spec.Name, spec.Memory/2); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*machine{p.from, p.to} {
		p.inject(m, fake.Fault{})
	}
	return p
}

// decide begins a migration: the fleet places the VM on the other host's nodes.
func (p *pair) decide(number int) {
	p.t.Helper()
	inv, err := p.other().daemon.Observe(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	placed, _, err := place.Place(place.Request{Host: &inv, Spec: p.vm.Spec, Policy: p.other().policy})
	if err != nil {
		p.t.Fatal(err)
	}
	p.vm.Migration = &fleet.Migration{To: p.other().name, Placement: placed, Why: "test",
		Began: time.Unix(1700000000+int64(number), 0)}
}

// other is the host that the VM is not on.
func (p *pair) other() *machine {
	if p.vm.Host == p.from.name {
		return p.to
	}
	return p.from
}

func (p *pair) here() *machine {
	if p.vm.Host == p.from.name {
		return p.from
	}
	return p.to
}

// act lets one host's daemon take a step with the present record, and start again if it was killed.
func (p *pair) act(m *machine) error {
	record := p.vm
	if record.Migration != nil {
		copied := *record.Migration
		record.Migration = &copied
	}
	part, ok, err := m.daemon.Act(context.Background(), &record, nil)
	p.watch()
	if m.dead.Load() {
		return m.restart()
	}
	if ok && part.Status.Phase != "" {
		m.status, m.last = part.Status, part
	}
	return err
}

// serve lets the fleet's server change the record by the statuses of both hosts, as package
// fleet says.
func (p *pair) serve() {
	m := p.vm.Migration
	if m == nil {
		return
	}
	of := func(host *machine) fleet.MigrationPhase {
		if !host.status.Began.Equal(m.Began) {
			return ""
		}
		return host.status.Phase
	}
	source, target := of(p.here()), of(p.other())
	switch {
	case target == fleet.MigrationArrived:
		p.vm.Host, p.vm.Placement, p.vm.Migration = m.To, m.Placement, nil
		return
	case target == fleet.MigrationPrepared && m.Ready == nil:
		m.Ready = p.other().status.Arrival
	}
	over := source == fleet.MigrationStays || source == fleet.MigrationUndecided || source == fleet.MigrationGone
	if m.Cancel == "" && (over || target == fleet.MigrationRefused) {
		m.Cancel = "it failed"
	}
	if m.Cancel != "" && target == fleet.MigrationGivenBack && over {
		p.vm.Migration = nil
	}
}

// finish lets all act without faults until nothing changes any more.
func (p *pair) finish() {
	p.t.Helper()
	p.from.fault, p.to.fault = fake.Fault{}, fake.Fault{}
	var errs []error
	for range 12 {
		errs = []error{p.act(p.from), p.act(p.to)}
		p.serve()
		if p.vm.Migration == nil && !p.from.isOpen(p.t) && !p.to.isOpen(p.t) {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.t.Errorf("the hosts do not settle: %v", err)
	}
	p.checkSettled()
}

// checkSettled checks what must hold after every migration, whatever its end.
func (p *pair) checkSettled() {
	p.t.Helper()
	name := p.vm.Name
	if p.twice != nil {
		p.t.Errorf("%v", p.twice)
	}
	if p.vm.Migration != nil {
		p.t.Fatalf("the migration has no end: %+v; %+v; %+v", p.vm.Migration, p.from.status, p.to.status)
	}
	if !p.here().Executes(name) || p.other().Executes(name) {
		p.t.Errorf("the record says %s; it runs on %s: %v, on %s: %v", p.vm.Host, p.from.name,
			p.from.Executes(name), p.to.name, p.to.Executes(name))
	}
	if _, left := p.other().Guest(name); left {
		p.t.Errorf("something of it is left on %s", p.other().name)
	}
	for _, m := range []*machine{p.from, p.to} {
		operatetest.World{Host: m.Host, Joined: joined(m)}.CheckSettled(p.t)
	}
	if grown, err := p.other().daemon.Ledger.GrownFor(name); err != nil || len(grown) > 0 {
		p.t.Errorf("huge pages that were added for it stay on %s: %v, %v", p.other().name, grown, err)
	}
	p.checkPlaced()
}

// checkPlaced checks that the VM is where the record wants it, with an intent of its host.
func (p *pair) checkPlaced() {
	p.t.Helper()
	m := p.here()
	operatetest.World{Host: m.Host, Joined: joined(m)}.CheckInPlace(p.t, p.vm.Name)
	intent, ok := m.Intent(p.vm.Name)
	if !ok || intent.Host.ID != "id-"+m.name || intent.Placement.Nodes.String() != p.vm.Placement.Nodes.String() {
		p.t.Errorf("its intent is for %+v, nodes %s; the record says %s, nodes %s", intent.Host,
			intent.Placement.Nodes, p.vm.Host, p.vm.Placement.Nodes)
	}
	inv, err := m.daemon.Observe(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	if g, _ := inv.Guest(p.vm.Name); g.PlacedFor != nil {
		p.t.Errorf("its intent counts as that of host %s", g.PlacedFor)
	}
	var reserved topology.Bytes
	for _, h := range inv.Holdings("") {
		reserved += h.Reserved
	}
	if reserved != p.vm.Spec.Memory {
		p.t.Errorf("%v are reserved for %v", reserved, p.vm.Spec.Memory)
	}
}

func joined(m *machine) *move.Host { return &move.Host{Host: *m.daemon.Host} }
