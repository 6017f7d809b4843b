package xen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var _ migrate.Port = (*Driver)(nil)

// part is one host of a fleet with its part in migrations.
type part struct {
	*migrate.Host

	sim    *simulated
	status fleet.MigrationStatus
}

// parts are two hosts, a VM on the first one, and the fleet's record of it.
type parts struct {
	t        *testing.T
	from, to *part
	vm       fleet.VM
}

func newParts(t *testing.T) *parts {
	t.Helper()
	p := &parts{t: t}
	for name, to := range map[string]**part{"x1": &p.from, "x2": &p.to} {
		h, s := joined(t)
		h.Sources.HostName = func() (string, error) { return name, nil }
		h.Sources.HostID = func() (string, error) { return "id-" + name, nil }
		*to = &part{sim: s, Host: &migrate.Host{Host: h, Port: h.Control.(*Driver), Name: name, URI: MigrationURI(name),
			Define: xlMachines().Define}}
	}
	p.from.sim.peer, p.to.sim.peer = p.to.sim, p.from.sim
	m := fleet.Machine{Type: inventory.MachineXen, Kernel: "/images/vmlinuz", Network: "xenbr0",
		Disks: []fleet.Disk{{Path: "/images/web.raw"}, {Path: "/images/seed.iso", ReadOnly: true}}}
	spec, err := m.Fit(guest.Spec{Name: "web", VCPUs: 2, Memory: topology.GiB})
	if err == nil {
		spec, err = spec.Normalize()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.vm = fleet.VM{Name: "web", Spec: spec, Machine: m, Host: "x1", Run: fleet.Running, Created: time.Unix(1e9, 0)}
	made, err := p.from.Create(t.Context(), operate.CreateRequest{Spec: spec, Render: xlMachines()(&p.vm)})
	if err != nil {
		t.Fatal(err)
	}
	p.vm.Placement = made.Placement
	p.to.sim.add("busy", 0, "0-3", 4)
	p.decide(1)
	return p
}

// Define makes the definition of a VM as package local does.
func (r renderers) Define(_ context.Context, v *fleet.VM, i guest.Intent) ([]byte, error) {
	made, err := r(v)(i)
	return made.Definition.Text, err
}

// decide begins a migration to the second host.
func (p *parts) decide(number int64) {
	p.t.Helper()
	inv, err := p.to.Observe(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	placed, _, err := place.Place(place.Request{Host: &inv, Spec: p.vm.Spec})
	if err != nil {
		p.t.Fatal(err)
	}
	p.vm.Migration = &fleet.Migration{To: "x2", Placement: placed, Why: "test", Began: time.Unix(1e9+number, 0)}
}

// act lets a host take a step.
func (p *parts) act(h *part) error {
	record := p.vm
	if m := record.Migration; m != nil {
		copied := *m
		record.Migration = &copied
	}
	step, ok, err := h.Act(p.t.Context(), &record, nil)
	if ok && step.Status.Phase != "" {
		h.status = step.Status
	}
	return err
}

// serve changes the record as the fleet's server does.
func (p *parts) serve() {
	m := p.vm.Migration
	if m == nil {
		return
	}
	source, target := p.from.status.Phase, p.to.status.Phase
	over := source == fleet.MigrationStays || source == fleet.MigrationUndecided || source == fleet.MigrationGone
	switch {
	case target == fleet.MigrationArrived:
		p.vm.Host, p.vm.Placement, p.vm.Migration = m.To, m.Placement, nil
	case target == fleet.MigrationPrepared && m.Ready == nil:
		m.Ready = p.to.status.Arrival
	case m.Cancel == "" && (over || target == fleet.MigrationRefused):
		m.Cancel = "it failed"
	case m.Cancel != "" && target == fleet.MigrationGivenBack && over:
		p.vm.Migration = nil
	}
}

// finish lets all act until nothing changes any more, and returns the last errors.
func (p *parts) finish() (err error) {
	p.t.Helper()
	for range 8 {
		err = errors.Join(p.act(p.from), p.act(p.to))
		p.serve()
	}
	return err
}

// executing counts the domains of the VM that run.
func (p *parts) executing() (n int) {
	for _, h := range []*part{p.from, p.to} {
		for _, name := range []string{"web", "web" + incoming, "web" + migratedAway} {
			if d := h.sim.domain(name); d != nil && !d.suspended && !d.paused {
				n++
			}
		}
	}
	return n
}

// A VM of a fleet with disks and a network card migrates with the definition of the fleet's record, bound to the
// placement on the target. Its UUID stays, and its intent goes with it.
func TestPort_Migrates(t *testing.T) {
	p := newParts(t)
	before := p.from.sim.domain("web")
	if err := p.finish(); err != nil || p.vm.Host != "x2" {
		t.Fatalf("the VM is on %s: %v; source %+v, target %+v", p.vm.Host, err, p.from.status, p.to.status)
	}
	now := p.to.sim.domain("web")
	if p.executing() != 1 || now == nil || now.uuid != before.uuid || now.node != 1 || now.hard[0].String() != "4-7" {
		t.Errorf("on the target is %+v, want node 1, since node 0 is in use, and the UUID %s", now, before.uuid)
	}
	for _, part := range []string{"target=/images/web.raw", "target=/images/seed.iso", "bridge=xenbr0", `cpus_soft = "4-7"`} {
		if !strings.Contains(p.from.sim.migrated, part) {
			t.Errorf("the configuration for the target lacks %q:\n%s", part, p.from.sim.migrated)
		}
	}
	if p.from.sim.stored() != 0 || p.to.sim.stored() == 0 {
		t.Errorf("%d values in xenstore here and %d on the target; want the intent there only", p.from.sim.stored(),
			p.to.sim.stored())
	}
	inv, err := p.to.Observe(t.Context())
	g, ok := inv.Guest("web")
	if err != nil || !ok || g.PlacedFor != nil || !g.Managed || !g.Placement.Nodes.Equal(p.vm.Placement.Nodes) {
		t.Errorf("the target has %+v, %v", g, err)
	}
}

// Wherever xl migrate breaks off, one VM runs, and the record names its host; where only an operator can act, nothing
// is ended, and the error says what to do.
func TestPort_BreaksOff(t *testing.T) {
	for ends, c := range map[string]struct {
		old  bool   // xl does not resume
		host string // of the record afterwards
		says string // of the last error or status; empty: all is settled
		runs int    // domains of the VM that run; 0: 1
		left bool   // a domain of the VM is left elsewhere
	}{
		"refused":       {host: "x1"},
		"odd":           {host: "x1"},
		"copy":          {host: "x1"},
		"unheard":       {host: "x2"},
		"away":          {host: "x1"},
		"away, old xl":  {old: true, host: "x1", says: "do not end the domain", runs: -1},
		"silent":        {host: "x2"},
		"both":          {host: "x2", says: "end one of them", runs: 2, left: true},
		"silent, alone": {host: "x2"},
	} {
		t.Run(ends, func(t *testing.T) {
			p := newParts(t)
			p.from.sim.ends, _, _ = strings.Cut(ends, ",")
			p.from.sim.old = c.old
			for range 3 {
				_ = errors.Join(p.act(p.from), p.act(p.to)) // what is true is checked afterwards
				p.serve()
				if n := p.executing(); n > 1 && ends != "both" {
					t.Fatalf("%d domains of the VM run", n)
				}
			}
			delete(p.to.sim.failing, "xl") // the target answers again
			err := p.finish()
			said := p.from.status.Message
			if err != nil {
				said = err.Error()
			}
			if c.says == "" && err != nil || !strings.Contains(said, c.says) {
				t.Errorf("error %v, message %q, want %q", err, said, c.says)
			}
			want := max(0, c.runs) + map[bool]int{true: 1}[c.runs == 0]
			if p.executing() != want || p.vm.Host != c.host {
				t.Errorf("%d domains run, want %d; the record names %s, want %s", p.executing(), want, p.vm.Host, c.host)
			}
			if c.says == "" && p.vm.Migration != nil {
				t.Errorf("the migration has no end: %+v", p.vm.Migration)
			}
			other := map[string]*part{"x1": p.to, "x2": p.from}[c.host].sim
			for _, name := range []string{"web", "web" + incoming, "web" + migratedAway} {
				if other.domain(name) != nil && !c.left {
					t.Errorf("%s is left on the other host", name)
				}
			}
			if c.old && p.from.sim.domain("web") == nil {
				t.Error("the only domain of the VM is gone")
			}
		})
	}
}

// What cannot migrate is refused before anything is changed: the VM stays, and the room on the target is free.
func TestPort_Refuses(t *testing.T) {
	for says, change := range map[string]func(p *parts){
		"vnuma": func(p *parts) {
			p.from.sim.domains[1].config = `"b_info": {"vnuma_nodes": [{"memkb": 1048576, "vcpus": [0,1]}]}`
		},
		"device":      func(p *parts) { p.from.sim.domains[1].config += `, "pcidevs": [{"bus": 1}]` },
		"3 disks":     func(p *parts) { p.from.sim.domains[1].config = `"disks": [{}, {}, {}], "nics": [{}]` },
		"UUID":        func(p *parts) { p.vm.Created = time.Unix(2e9, 0) },
		"post-copy":   func(p *parts) { p.vm.Migration.Options.PostCopy = true },
		"how long":    func(p *parts) { p.vm.Migration.Options.MaxDowntime = 10 },
		"copies no":   func(p *parts) { p.vm.Migration.Options.CopyStorage = true },
		"xl+ssh":      func(p *parts) { p.to.URI = "qemu+tls://x2/system" },
		"xl destroy":  func(p *parts) { p.to.sim.add("web"+incoming, 0, "0-3", 1).uuid = "" },
		"cannot be w": func(p *parts) { p.vm.Adopted = true }, // of a VM with disks no configuration is computed
	} {
		t.Run(says, func(t *testing.T) {
			p := newParts(t)
			change(p)
			_, _ = p.act(p.to), p.act(p.to)
			p.serve()
			if p.vm.Migration.Ready == nil {
				t.Fatalf("the target does not prepare: %+v", p.to.status)
			}
			err := p.act(p.from)
			if err == nil || !strings.Contains(err.Error(), says) || p.from.status.Phase != fleet.MigrationStays {
				t.Errorf("phase %s, error %v; want one that says %q", p.from.status.Phase, err, says)
			}
			if p.from.sim.migrated != "" || p.from.sim.domain("web") == nil {
				t.Errorf("it was migrated by %q", p.from.sim.migrated)
			}
		})
	}
}

// An adopted VM without disks and network cards migrates with a computed configuration.
func TestPort_AdoptedVM(t *testing.T) {
	p := newParts(t)
	p.from.sim.domains[1].config = ""
	p.vm.Adopted = true
	if err := p.finish(); err != nil || p.vm.Host != "x2" || p.executing() != 1 {
		t.Errorf("on %s, %d run: %v", p.vm.Host, p.executing(), err)
	}
}

// The end of the daemon, or a cancellation, does not end xl: the VM is copied until xl has ended, and then runs where
// xl has brought it.
func TestPort_DoesNotEndXL(t *testing.T) {
	p := newParts(t)
	if err := p.act(p.to); err != nil {
		t.Fatal(err)
	}
	p.serve()
	gate := make(chan struct{})
	p.from.sim.gate = gate
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	record := p.vm
	step, _, err := p.from.Act(ctx, &record, nil)
	if !errors.Is(err, context.Canceled) || step.Status.Phase != fleet.MigrationCopying {
		t.Errorf("phase %s, error %v", step.Status.Phase, err)
	}
	p.vm.Migration.Cancel = "alice changed her mind"
	if err := p.act(p.from); err == nil || !strings.Contains(err.Error(), "ends by itself") ||
		p.from.status.Phase != fleet.MigrationCopying {
		t.Errorf("phase %s, error %v", p.from.status.Phase, err)
	}
	close(gate)
	for end := time.Now().Add(10 * time.Second); p.from.sim.domain("web") != nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := p.finish(); err != nil || p.vm.Host != "x2" || p.executing() != 1 {
		t.Errorf("on %s, %d run: %v", p.vm.Host, p.executing(), err)
	}
}

// What a host has of a VM, by its domains and the programs that run.
func TestPort_Presence(t *testing.T) {
	const own, away, in = "web", "web" + migratedAway, "web" + incoming
	dom := func(name, state string) simDomain {
		return simDomain{name: name, uuid: "00000001-0000-4000-8000-000000000001", suspended: state == "suspended",
			paused: state == "paused", ending: map[string]string{"restarts": "---sr-", "powers off": "---s--"}[state]}
	}
	for name, c := range map[string]struct {
		domains  []simDomain
		programs []string
		want     guest.Presence
	}{
		"nothing":                  {want: guest.Absent},
		"another VM":               {[]simDomain{dom("web2", "")}, nil, guest.Absent},
		"runs":                     {[]simDomain{dom(own, "")}, nil, guest.Runs},
		"paused by somebody":       {[]simDomain{dom(own, "paused")}, nil, guest.Runs},
		"restarts":                 {[]simDomain{dom(own, "restarts")}, nil, guest.Changing},
		"powers off":               {[]simDomain{dom(own, "powers off")}, nil, guest.Changing},
		"leaves by its number":     {[]simDomain{dom(own, "")}, []string{"xl migrate -s ssh -C /f 1 x2"}, guest.Departing},
		"leaves by its name":       {[]simDomain{dom(own, "")}, []string{"/usr/sbin/xl migrate web x2"}, guest.Departing},
		"last pages":               {[]simDomain{dom(own, "suspended")}, []string{"xl migrate 1 x2"}, guest.Departing},
		"handshake":                {[]simDomain{dom(away, "suspended")}, []string{"xl migrate 1 x2"}, guest.Departing},
		"another VM leaves":        {[]simDomain{dom(own, "")}, []string{"xl migrate 7 x2"}, guest.Runs},
		"xl was killed, suspended": {[]simDomain{dom(own, "suspended")}, nil, guest.Suspended},
		"xl was killed, renamed":   {[]simDomain{dom(away, "suspended")}, nil, guest.Suspended},
		"resumed by an operator":   {[]simDomain{dom(away, "")}, nil, guest.Changing},
		"arrives":                  {[]simDomain{dom(in, "paused")}, []string{"xl migrate-receive"}, guest.Suspended},
		"arrives, named":           {[]simDomain{dom(own, "paused")}, []string{"xl migrate-receive"}, guest.Suspended},
		"arrived":                  {[]simDomain{dom(own, "")}, []string{"xl migrate-receive"}, guest.Runs},
		"reboots":                  {nil, []string{"xl create"}, guest.Changing},
		"a copy is left":           {[]simDomain{dom(in, "paused")}, nil, guest.Suspended},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := joined(t)
			for i := range c.domains {
				s.domains[i+1] = &c.domains[i]
			}
			for _, line := range c.programs {
				p := program{args: strings.Fields(line)}
				if line == "xl create" {
					p.log = "Waiting for domain web (domid 9) to die [pid 7]\n"
				}
				s.programs = append(s.programs, p)
			}
			if p, err := h.Control.(*Driver).Presence(t.Context(), "web"); err != nil || p != c.want {
				t.Errorf("%v, %v; want %v", p, err, c.want)
			}
		})
	}
}

// A domain is ended after a migration only if it is suspended for one; and only such a one is resumed.
func TestPort_DiscardsOnlyWhatIsSuspended(t *testing.T) {
	for _, name := range []string{"web", "web" + migratedAway} {
		for _, suspended := range []bool{false, true} {
			h, s := joined(t)
			d := h.Control.(*Driver)
			s.add(name, 0, "0-3", 1).suspended = suspended
			err := d.DiscardSuspended(t.Context(), "web")
			if gone := s.domains[1] == nil; gone != suspended || (err == nil) != suspended {
				t.Errorf("%s, suspended %v: ended %v, error %v", name, suspended, gone, err)
			}
			s.add(name, 0, "0-3", 1).suspended = suspended
			err = d.Resume(t.Context(), "web")
			if runs := s.domain("web") != nil && !s.domain("web").suspended; suspended && (err != nil || !runs) ||
				!suspended && err == nil {
				t.Errorf("%s, suspended %v: error %v", name, suspended, err)
			}
		}
	}
}

// The target is asked by the UUID of what is here.
func TestPort_RunsAt(t *testing.T) {
	for name, c := range map[string]struct {
		there string
		other bool
		want  bool
	}{"runs": {"web", false, true}, "nothing": {"", false, false}, "another VM of the name": {"web", true, false},
		"a copy": {"web" + incoming, false, false}} {
		h, here := joined(t)
		_, there := joined(t)
		here.peer = there
		here.add("web"+migratedAway, 0, "0-3", 1).suspended = true
		if c.there != "" {
			there.add(c.there, 0, "0-3", 1).uuid = here.domains[1].uuid
			if c.other {
				there.domains[1].uuid = "00000009-0000-4000-8000-000000000009"
			}
		}
		if runs, err := h.Control.(*Driver).RunsAt(t.Context(), "xl+ssh://x2", "web"); err != nil || runs != c.want {
			t.Errorf("%s: %v, %v", name, runs, err)
		}
	}
}

// A URI of another host chooses an address and a port, and no command.
func TestMigrationURI(t *testing.T) {
	for uri, want := range map[string]string{
		"xl+ssh://xen2":                   SSH + " xen2",
		"xl+ssh://root@10.0.0.2:2222":     SSH + " -p 2222 root@10.0.0.2",
		"xl+ssh://xen2/":                  SSH + " xen2",
		"xl+ssh://":                       "",
		"xl+ssh://-oProxyCommand=x":       "",
		"xl+ssh://xen2/x":                 "",
		"xl+ssh://xen2?command=x":         "",
		"xl+ssh://xen2:22;reboot":         "",
		"xl+ssh://-oProxyCommand=x@xen2":  "",
		"xl+ssh://a%20b":                  "",
		"qemu+tls://xen2/system":          "",
		"xen2":                            "",
		MigrationURI("xen2.example.org"):  SSH + " xen2.example.org",
		"xl+ssh://$(reboot)@xen2":         "",
		"xl+ssh://root:secret@10.0.0.2:1": SSH + " -p 1 root@10.0.0.2",
	} {
		r, err := New(nil).routeTo(uri)
		if (err == nil) != (want != "") || err == nil && r.transport+" "+r.address != want {
			t.Errorf("%q: %+v, %v; want %q", uri, r, err, want)
		}
	}
}

// The output of xl list -v is read as xl 4.17 writes it, or refused.
func TestParseListed(t *testing.T) {
	const out = "Name                                        ID   Mem VCPUs\tState\tTime(s)   UUID" +
		"                            Reason-Code\tSecurity Label\n" +
		"Domain-0                                     0  1024     4     r-----      50.7 " +
		"00000000-0000-0000-0000-000000000000        -                -\n" +
		"web 1                                        3   192     2     -b----       3.0 " +
		"0b2d5b3e-5a5e-4f3c-9f0e-5d1d2f6f9a10        -                -\n" +
		"web--migratedaway                            4   192     2     ---ss-       3.0 " +
		"0b2d5b3e-5a5e-4f3c-9f0e-5d1d2f6f9a11        2                -\n"
	all, err := parseListed([]byte(out))
	if err != nil || len(all) != 3 || all[1].name != "web 1" || all[1].id != 3 || all[1].isSuspended() ||
		!all[2].isSuspended() || all[2].uuid != "0b2d5b3e-5a5e-4f3c-9f0e-5d1d2f6f9a11" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := parseListed([]byte("Name\nweb 3\n")); err == nil {
		t.Error("a line of another form is accepted")
	}
}

func FuzzParseListed(f *testing.F) {
	f.Add("web                    4   192     2     ---ss-       3.0 0b2d5b3e-5a5e-4f3c-9f0e-5d1d2f6f9a11        2  -")
	f.Fuzz(func(t *testing.T, line string) {
		all, err := parseListed([]byte("Name\n" + line))
		for _, d := range all {
			if err == nil && (d.name == "" || d.id < 0 || len(d.states) != 6) {
				t.Errorf("%q is read as %s", line, fmt.Sprintf("%+v", d))
			}
		}
	})
}

// Whether other hosts reach the disks is asked of the paths to which the VM writes; without such a disk it is known.
func TestGuests_SharedStorage(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		disks  string
		shared *bool // the answer about the path
		want   *bool
	}{
		"no disk":        {"", &no, &yes},
		"read-only":      {`"disks": [{"pdev_path": "/seed.iso"}]`, &no, &yes},
		"on one host":    {`"disks": [{"pdev_path": "/web.raw", "readwrite": 1}]`, &no, &no},
		"shared":         {`"disks": [{"pdev_path": "/web.raw", "readwrite": 1}]`, &yes, &yes},
		"nobody can say": {`"disks": [{"pdev_path": "/web.raw", "readwrite": 1}]`, nil, nil},
	} {
		h, s := joined(t)
		h.Control.(*Driver).Shared = func(paths []string) *bool {
			if len(paths) != 1 || paths[0] != "/web.raw" {
				t.Errorf("%s: asked about %q", name, paths)
			}
			return c.shared
		}
		s.add("web", 0, "0-3", 1).config = c.disks
		inv, err := h.Observe(t.Context())
		g, ok := inv.Guest("web")
		if err != nil || !ok {
			t.Fatal(err)
		}
		if got := g.Config.SharedStorage; (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
