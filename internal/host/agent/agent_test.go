package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const square = "nodes:4 cores:4 memory:4G square distances:10,16,28"

// machines makes definitions for the fake.
type machines struct{}

// refused is a kernel that no host has.
const refused = "/refused"

func (machines) Prepare(_ context.Context, v *fleet.VM) (operate.Renderer, func() error, error) {
	if v.Machine.Kernel == refused {
		return nil, nil, errors.New("no such kernel")
	}
	return operatetest.Render, nil, nil
}

// member is a fake host under an agent.
type member struct {
	operatetest.World
	t      *testing.T
	folder string
	repeat time.Duration // RepeatEvery
	agent  *agent.Agent
	stop   context.CancelFunc
	ended  chan error
}

func joined(t *testing.T, s *fleetServer) *member {
	t.Helper()
	m := &member{World: operatetest.New(t, square, t.TempDir()), t: t, folder: filepath.Join(t.TempDir(), "fleet")}
	m.Joined.Clock = time.Now
	m.Joined.Sources.Now = time.Now
	_, err := agent.Join(t.Context(), m.folder, agent.JoinRequest{Server: s.address(), Token: "once",
		Fingerprint: s.fingerprint(), Host: "fake", ID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	t.Cleanup(func() {
		m.end()
		s.CloseClientConnections()
	})
	return m
}

func (m *member) start() {
	m.t.Helper()
	of, err := agent.LoadMember(m.folder)
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	part := &migrate.Host{Host: &m.Joined.Host, Port: m.Host, Name: "fake", URI: "qemu+tls://fake/system"}
	m.agent = agent.New(agent.Options{Member: of, Folder: m.folder, Host: &m.Joined.Host, Machines: machines{},
		Migrations: part,
		Loads: func(ctx context.Context) (inventory.Host, error) {
			h, err := m.Joined.Observe(ctx)
			for i := range h.Guests {
				h.Guests[i].Seen.Load = &inventory.GuestLoad{CPU: 1}
			}
			return h, err
		},
		Program: "test", Log: log, LoadsEvery: 20 * time.Millisecond, HeartbeatEvery: 5 * heartbeat,
		Look: 50 * time.Millisecond, Grace: 100 * time.Millisecond,
		RepeatEvery: m.repeat, LeastWait: 5 * time.Millisecond, MostWait: 20 * time.Millisecond})
	ctx, stop := context.WithCancel(context.Background())
	m.stop, m.ended = stop, make(chan error, 1)
	go func() { m.ended <- m.agent.Run(ctx) }()
}

func (m *member) end() {
	m.stop()
	if err := <-m.ended; err != nil {
		m.t.Errorf("the agent ends with %v", err)
	}
	m.ended <- nil
}

// vm is a record whose placement was decided for the host as it is.
func (m *member) vm(name string, limits string) fleet.VM {
	m.t.Helper()
	s := guest.Spec{Name: name, VCPUs: 2, Memory: topology.GiB}
	if limits != "" {
		s.Limits.Nodes = operatetest.Nodes(limits)
	}
	spec := operatetest.Spec(m.t, s)
	inv, err := m.Joined.Observe(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	p, _, err := place.Place(place.Request{Host: &inv, Spec: spec})
	if err != nil {
		m.t.Fatal(err)
	}
	spec.Limits = guest.Limits{}
	return fleet.VM{Name: name, Host: "fake", Spec: spec, Run: fleet.Running, Generation: 1, Placement: p,
		Created: time.Unix(1e9, 0).UTC()}
}

func (m *member) creates(name string) int {
	n := 0
	entries, _ := m.Joined.Journal.Entries()
	for _, e := range entries {
		if e.Kind == "create-began" && slices.Contains(e.Guests, name) {
			n++
		}
	}
	return n
}

// A VM is created on the nodes that the fleet chose, stopped, started, bound elsewhere and
// deleted; each is done once, and reported.
func TestAgent_CarriesOutTheDesiredState(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "2")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckInPlace(t, "web")
	if on := m.MustGuest(t, "web").Placement.Nodes; !on.Equal(operatetest.Nodes("2")) {
		t.Errorf("it runs on nodes %s, want 2", on)
	}
	s.until(t, "the placement is reported", func(s *fleetServer) bool {
		return s.statuses["web"].Placement.Nodes.Equal(operatetest.Nodes("2"))
	})

	v.Run, v.Generation = fleet.Stopped, 2
	s.want(v)
	s.phase(t, "web", fleet.PhaseStopped)
	if g := m.MustGuest(t, "web"); g.State != "shutoff" {
		t.Errorf("it is %s", g.State)
	}
	if err := m.Deafen("web"); err != nil {
		t.Fatal(err)
	}
	v.Run, v.Generation, v.Placement = fleet.Running, 3, m.vm("web", "1").Placement
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckInPlace(t, "web")
	v.Generation, v.Placement = 4, m.vm("web", "3").Placement
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	m.CheckInPlace(t, "web")
	if on := m.MustGuest(t, "web").Placement.Nodes; !on.Equal(operatetest.Nodes("3")) {
		t.Errorf("it runs on nodes %s, want 3", on)
	}
	v.Run, v.Generation = fleet.Stopped, 5 // it ignores the request to power off
	s.want(v)
	s.phase(t, "web", fleet.PhaseStopped)
	v.Delete, v.Generation = true, 6
	s.want(v)
	s.phase(t, "web", fleet.PhaseGone)
	if _, exists := m.Guest("web"); exists {
		t.Error("it still exists")
	}
	if n := m.creates("web"); n != 1 {
		t.Errorf("it was created %d times", n)
	}
	m.CheckSettled(t)
}

// A VM of a changed size is defined again once it is stopped.
func TestAgent_Resizes(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	v.Run, v.Generation = fleet.Stopped, 2
	s.want(v)
	s.phase(t, "web", fleet.PhaseStopped)
	v.Spec.VCPUs = 3
	inv, err := m.Joined.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.Placement, _, err = place.Place(place.Request{Host: &inv, Spec: v.Spec, Ignore: "web"}); err != nil {
		t.Fatal(err)
	}
	v.Run, v.Generation = fleet.Running, 3
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	if g := m.MustGuest(t, "web"); g.Config.VCPUs != 3 {
		t.Errorf("it has %d vCPUs, want 3", g.Config.VCPUs)
	}
}

// A resize whose files cannot be made leaves the VM as it was.
func TestAgent_KeepsAVMThatItCannotResize(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	v.Run, v.Generation = fleet.Stopped, 2
	s.want(v)
	s.phase(t, "web", fleet.PhaseStopped)
	before := m.MustGuest(t, "web")
	v.Run, v.Generation, v.Spec.VCPUs = fleet.Running, 3, 3
	v.Machine.Kernel = refused
	s.want(v)
	s.phase(t, "web", fleet.PhaseFailed)
	m.CheckUnchanged(t, before)
}

// A placement that the host cannot give now is refused with the reason, and tried again.
func TestAgent_RefusesAPlacementThatIsNotLegal(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "2")
	m.Fill(2, 100*topology.MiB)
	s.want(v)
	s.phase(t, "web", fleet.PhaseFailed)
	if why := s.statuses["web"].Message; !strings.Contains(why, "cannot give the placement") {
		t.Errorf("reported %q", why)
	}
	m.Drain()
	v.Generation++
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
}

// VMs of other programs are neither overwritten nor deleted, unless they are adopted.
func TestAgent_LeavesVMsOfOthers(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	m.MustAdd(t, operatetest.Kinds[0].Guest("web", 32*topology.MiB, []topology.NodeID{1}, operatetest.CPUs("12-15")))
	before := m.MustGuest(t, "web")
	v := m.vm("web", "2")
	s.want(v)
	s.phase(t, "web", fleet.PhaseFailed)
	v.Delete, v.Generation = true, 2
	s.want(v)
	s.phase(t, "web", fleet.PhaseGone)
	s.want()
	time.Sleep(2 * heartbeat)
	m.CheckUnchanged(t, before)

	b, err := m.Joined.Bind(t.Context(), operate.BindRequest{Name: "web", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	v = fleet.VM{Name: "web", Host: "fake", Adopted: true, Run: fleet.Running, Generation: 1, Placement: b.Plan.Placement,
		Created: time.Unix(2e9, 0)}
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	if g := m.MustGuest(t, "web"); !g.Managed || !g.Adopted {
		t.Errorf("it is not adopted: %+v", g)
	}
}

// Neither a restart of the daemon, nor of the server, nor lost connections, nor silence create
// a VM twice, or lose a change.
func TestAgent_SurvivesInterruptions(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "")
	s.want(v)
	for i := range 8 {
		switch i % 4 {
		case 0:
			s.CloseClientConnections()
		case 1:
			m.end()
			m.start()
		case 2: // longer than the agent waits
			s.set(func(s *fleetServer) { s.frozen = true })
			time.Sleep(16 * heartbeat)
			s.set(func(s *fleetServer) { s.frozen = false })
		case 3:
			s.set(func(s *fleetServer) { s.mute = true })
			s.CloseClientConnections()
			time.Sleep(heartbeat)
			s.set(func(s *fleetServer) { s.mute = false })
		}
		v.Generation++
		v.Run = fleet.Running
		if i%3 == 0 {
			v.Run = fleet.Stopped
		}
		s.want(v)
		time.Sleep(time.Duration(i) * 7 * time.Millisecond)
	}
	s.phase(t, "web", fleet.PhaseRunning)
	if n := m.creates("web"); n != 1 {
		t.Errorf("it was created %d times", n)
	}
}

// A report is sent at the start and when the inventory changes, and loads every few
// seconds: all of them first and on request, else those that changed.
func TestAgent_ReportsTheHostAndItsLoads(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	s.until(t, "the first report", func(s *fleetServer) bool { return len(s.reports) > 0 })
	if r := s.reports[0]; r.Program != "test" || len(r.Inventory.Topology.Nodes) != 4 {
		t.Errorf("the report is %+v", r)
	}
	s.until(t, "loads", func(s *fleetServer) bool { return len(s.loads) > 5 })
	s.set(func(s *fleetServer) {
		if len(s.loads[0].Nodes) != 4 || s.loads[0].Since != 0 || s.loads[0].Number != 1 {
			t.Errorf("the first loads are %+v", s.loads[0])
		}
		if l := s.loads[2]; len(l.Nodes) != 0 || l.Since != 2 || l.Number != 3 {
			t.Errorf("loads without a change are %+v", l)
		}
		s.loads, s.full = nil, true
	})
	s.until(t, "all loads again", func(s *fleetServer) bool {
		return slices.ContainsFunc(s.loads, func(l fleet.Loads) bool { return l.Since == 0 && len(l.Nodes) == 4 })
	})
	s.want(m.vm("web", ""))
	s.until(t, "a report with the VM", func(s *fleetServer) bool {
		last := s.reports[len(s.reports)-1].Inventory
		g, ok := last.Guest("web")
		return ok && len(last.Claims) == 0 && len(g.Seen.MemoryByNode) > 0
	})
	s.until(t, "its load", func(s *fleetServer) bool {
		return slices.ContainsFunc(s.loads, func(l fleet.Loads) bool { return len(l.VMs) == 1 })
	})
	s.set(func(s *fleetServer) { s.reports = s.reports[:0] })
	time.Sleep(5 * heartbeat)
	s.set(func(s *fleetServer) {
		if len(s.reports) > 0 {
			t.Errorf("%d reports without a change", len(s.reports))
		}
	})
}

// The host's VMs and the daemon do not depend on the server.
func TestAgent_ShowsThatTheServerIsGone(t *testing.T) {
	s := newServer(t)
	m := joined(t, s)
	v := m.vm("web", "")
	s.want(v)
	s.phase(t, "web", fleet.PhaseRunning)
	if now := m.agent.Status(); !now.Connected || now.Host != "fake" {
		t.Errorf("the status is %+v", now)
	}
	s.CloseClientConnections()
	_ = s.Listener.Close()
	s.CloseClientConnections()
	end := time.Now().Add(10 * time.Second)
	for m.agent.Status().Connected && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
		s.CloseClientConnections()
	}
	if now := m.agent.Status(); now.Connected || now.Why == "" {
		t.Errorf("the status without a server is %+v", now)
	}
	if g := m.MustGuest(t, "web"); g.State != "running" {
		t.Errorf("the VM is %s", g.State)
	}
	for range 2 { // also after a restart
		if !m.agent.Has("web") || m.agent.Has("mine") {
			t.Errorf("web is the fleet's: %v, mine is: %v", m.agent.Has("web"), m.agent.Has("mine"))
		}
		m.end()
		m.start()
	}
}

// A certificate is renewed before it expires; the key is new, and the file only its owner's.
func TestAgent_RenewsItsCertificate(t *testing.T) {
	s := newServer(t)
	s.validFor = 3 * time.Second // of which a minute before the join counts as past
	m := joined(t, s)
	s.until(t, "a renewal", func(s *fleetServer) bool { return s.renewals > 0 })
	first := ""
	end := time.Now().Add(5 * time.Second)
	for time.Now().Before(end) {
		of, err := agent.LoadMember(m.folder)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = of.Key
		}
		s.mu.Lock()
		n := s.renewals
		s.mu.Unlock()
		if n > 0 {
			break
		}
	}
	info, err := os.Stat(filepath.Join(m.folder, "member.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the membership's file is %v, %v", info, err)
	}
	s.want(m.vm("web", ""))
	s.phase(t, "web", fleet.PhaseRunning)
}

// Join refuses a server of another CA, a token that was used, and a second membership.
func TestJoin_Refuses(t *testing.T) {
	s := newServer(t)
	other := strings.Repeat("ab", 32)
	good := agent.JoinRequest{Server: s.address(), Token: "once", Fingerprint: s.fingerprint(), Host: "h1", ID: "i"}
	with := func(change func(*agent.JoinRequest)) agent.JoinRequest { r := good; change(&r); return r }
	for name, c := range map[string]struct {
		r    agent.JoinRequest
		says string
	}{
		"another CA":            {with(func(r *agent.JoinRequest) { r.Fingerprint = other }), "does not have the fingerprint"},
		"a wrong token":         {with(func(r *agent.JoinRequest) { r.Token = "guess" }), "the token is not valid"},
		"a bad fingerprint":     {with(func(r *agent.JoinRequest) { r.Fingerprint = "abc" }), "64 hexadecimal digits"},
		"an address in no form": {with(func(r *agent.JoinRequest) { r.Server = "http://" + s.address() }), "HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "fleet")
			_, err := agent.Join(t.Context(), folder, c.r)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want %q", err, c.says)
			}
			if _, err := agent.LoadMember(folder); !errors.Is(err, agent.ErrNotMember) {
				t.Errorf("a membership is stored: %v", err)
			}
		})
	}
	folder := filepath.Join(t.TempDir(), "fleet")
	if _, err := agent.Join(t.Context(), folder, good); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Join(t.Context(), folder, good); !errors.Is(err, agent.ErrMember) {
		t.Errorf("joining twice: %v", err)
	}
	if err := agent.Leave(folder); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Join(t.Context(), folder, good); err == nil {
		t.Error("a used token is accepted")
	}
	s.CloseClientConnections()
}
