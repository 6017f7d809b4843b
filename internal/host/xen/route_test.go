package xen

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// twoHosts joins two simulated hosts by a transport. Each has its own identity.
func twoHosts(t *testing.T) (h *operate.Host, here, there *simulated, way *Route) {
	t.Helper()
	h, here = joined(t)
	h.Sources.HostID = func() (string, error) { return "source", nil }
	other, there := joined(t)
	other.Sources.HostID = func() (string, error) { return "target", nil }
	here.peer = there
	there.captured = func() ([]byte, error) {
		there.mu.Unlock() // the observation calls xl
		defer there.mu.Lock()
		inv, err := other.Observe(t.Context())
		if err != nil {
			return nil, &FailedError{Command: "numavisor", Status: 1, Said: err.Error()}
		}
		return json.Marshal(inv)
	}
	way, err := h.Control.(*Driver).Route("root@xen2", SSH)
	if err != nil {
		t.Fatal(err)
	}
	return h, here, there, way
}

func migrateVM(t *testing.T, h *operate.Host, way *Route) (operate.Migrated, error) {
	t.Helper()
	return h.Migrate(t.Context(), operate.MigrateRequest{Name: "vm", To: "root@xen2", Route: way})
}

// A VM migrates to one node of the target, where its memory and its vCPUs are verified. Its UUID and its intent go with
// it, and nothing of it is left here.
func TestMigrate(t *testing.T) {
	h, here, there, way := twoHosts(t)
	there.add("busy", 0, "0-3", 4)
	before := here.add("vm", 0, "0-3", 2)
	if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	m, err := migrateVM(t, h, way)
	if err != nil || m.Truth == nil || len(m.Shortfalls()) > 0 || m.Placement.Nodes.String() != "1" {
		t.Fatalf("error %v, shortfalls %v, nodes %s; want node 1, since node 0 is in use", err, m.Shortfalls(),
			m.Placement.Nodes)
	}
	now := there.domains[2]
	if here.domains[1] != nil || now == nil || now.name != "vm" || now.node != 1 || now.uuid != before.uuid ||
		now.hard[0].String() != "4-7" {
		t.Fatalf("on the target is %+v, want the VM on node 1 with the UUID %s", now, before.uuid)
	}
	if len(here.store) != 0 || len(there.store) == 0 {
		t.Errorf("%d values in xenstore here and %d on the target; want the intent there only", len(here.store),
			len(there.store))
	}
	entries, err := h.Journal.Entries()
	if last := entries[len(entries)-1]; err != nil || last.Kind != journal.EffectMigrateOut.Done() {
		t.Errorf("the journal ends with %v, error %v", last.Kind, err)
	}
	if claims, err := h.Ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("claims %v, error %v", claims, err)
	}
}

// What cannot migrate is refused with the reason before anything is changed on either host, and so is a target that
// has no room for the VM on as many nodes as it has.
func TestMigrate_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		change func(h *operate.Host, here, there *simulated)
		says   string
	}{
		"a device":      {config: `"pcidevs": [{"bus": 1}]`, says: "0000:01:00.0"},
		"virtual nodes": {config: `"b_info": {"vnuma_nodes": [{"memkb": 524288, "vcpus": [0,1]}]}`, says: "vnuma"},
		"a disk":        {config: `"disks": [{"vdev": "xvda"}]`, says: "disks"},
		"paused":        {change: func(_ *operate.Host, here, _ *simulated) { here.domains[1].paused = true }, says: "paused"},
		"its name": {change: func(_ *operate.Host, _, there *simulated) {
			there.next = 7
			there.add("vm", 0, "0-3", 2)
		}, says: "another VM of this name"},
		"a copy": {change: func(_ *operate.Host, _, there *simulated) { there.add("vm--incoming", 0, "0-3", 2) },
			says: "xl destroy"},
		"its pool": {change: func(_ *operate.Host, here, there *simulated) {
			here.pools[0].Name, here.domains[0].pool, here.domains[1].pool = "db", "db", "db"
		}, says: "db"},
		"no node with room": {change: func(_ *operate.Host, here, there *simulated) {
			here.domains[1].memory = 3 << 10
			there.domains[7] = &simDomain{name: "a", memory: 2 << 10, uuid: "00000007-0000-4000-8000-000000000007", node: 0,
				pool: "Pool-0", hard: here.domains[1].hard, soft: here.domains[1].soft}
			there.domains[8] = &simDomain{name: "b", memory: 2 << 10, uuid: "00000008-0000-4000-8000-000000000008", node: 1,
				pool: "Pool-0", hard: here.domains[1].hard, soft: here.domains[1].soft}
		}, says: "does not fit"},
		"no numavisor there": {change: func(_ *operate.Host, _, there *simulated) {
			there.failing["numavisor"] = &FailedError{Command: "numavisor", Status: 127, Said: "not found"}
		}, says: "--inventory"},
		"xl there hangs": {change: func(_ *operate.Host, _, there *simulated) { there.failing["xl"] = ErrHangs },
			says: "xen2"},
	} {
		t.Run(name, func(t *testing.T) {
			h, here, there, way := twoHosts(t)
			here.add("vm", 0, "0-3", 2).config = c.config
			if c.change != nil {
				c.change(h, here, there)
			}
			m, err := migrateVM(t, h, way)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("placed on %s, error %v; want one that says %q", m.Placement.Nodes, err, c.says)
			}
			if here.migrated != "" || here.domains[1] == nil || here.domains[1].name != "vm" {
				t.Errorf("it was migrated by %q", here.migrated)
			}
		})
	}
}

// Wherever xl migrate fails, one VM is left: here or on the target. Where only an operator can know, both hosts are
// named, and nothing is ended.
func TestMigrate_Fails(t *testing.T) {
	for ends, c := range map[string]struct {
		here, there string // names of the VM's domain afterwards
		says        string // of the error; empty: it has migrated
	}{
		"refused": {here: "vm", says: "resuming at sender"},
		"odd":     {here: "vm", says: "without an error"},
		"copy":    {here: "vm", says: "resuming at sender"},
		"unheard": {there: "vm"},
		"away":    {here: "vm" + migratedAway, says: "exists only here"},
		"silent":  {here: "vm" + migratedAway, there: "vm", says: "look with 'xl list' on both hosts"},
		"both":    {here: "vm", there: "vm", says: "end one of them"},
	} {
		t.Run(ends, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, here, there, way := twoHosts(t)
				here.ends = ends
				here.add("vm", 0, "0-3", 2)
				_, err := migrateVM(t, h, way)
				if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("error %v, want %q", err, c.says)
				}
				name := func(s *simulated) string {
					if d := s.domains[1]; d != nil {
						return d.name
					}
					return ""
				}
				if name(here) != c.here || name(there) != c.there {
					t.Errorf("here is %q and on the target %q, want %q and %q", name(here), name(there), c.here, c.there)
				}
				if claims, err := h.Ledger.Claims(); err != nil || len(claims) > 0 {
					t.Errorf("claims %v, error %v", claims, err)
				}
			})
		})
	}
}

// A VM is verified on a target of which each command takes seconds, as those that need a new connection do.
func TestMigrate_VerifiesOnASlowTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, here, there, way := twoHosts(t)
		here.add("vm", 0, "0-3", 2)
		there.hangs = func(string) bool { time.Sleep(5 * time.Second); return false }
		m, err := migrateVM(t, h, way)
		if err != nil || m.Truth == nil || len(m.Shortfalls()) > 0 {
			t.Errorf("error %v, verified %v, shortfalls %v", err, m.Truth != nil, m.Shortfalls())
		}
	})
}

// Of all pairs of what two hosts can have, none leads to the end of the only domain of a VM, or of one that may run.
func TestSighting_EndsNoOnlyDomain(t *testing.T) {
	for source := absent; source <= unknown; source++ {
		for target := absent; target <= unknown; target++ {
			switch next := (sighting{source, target}).next(); {
			case next == endSource && (source != away || target != named),
				next == endCopy && (source != named || target != copied),
				next == hasMigrated && (target != named || source != absent),
				next == staysHere && source != named:
				t.Errorf("source %v, target %v: %v", source, target, next)
			}
		}
	}
}

// The host itself as the target is a re-creation, which the policy must allow.
func TestMigrate_ToItself(t *testing.T) {
	h, here, _, way := twoHosts(t)
	here.add("vm", 0, "0-3", 2)
	inv, err := h.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Migrate(t.Context(), operate.MigrateRequest{Name: "vm", To: "localhost", Route: fixed{way, inv}})
	if !errors.Is(err, operate.ErrRecreate) || here.migrated != "" {
		t.Errorf("error %v, migrated by %q; want ErrRecreate", err, here.migrated)
	}
}

// fixed is a route to a host of which the inventory is known.
type fixed struct {
	*Route

	inv inventory.Host
}

func (f fixed) Inventory(context.Context) (inventory.Host, error) { return f.inv, nil }

// Addresses and transports become words of a command line.
func TestRoute_Address(t *testing.T) {
	d := New(nil)
	for address, ok := range map[string]bool{"xen2": true, "root@10.0.0.2": true, "root@[fe80::1%eth0]": true,
		"-oProxyCommand=x": false, "a;b": false, "": false, "$(x)": false, "a b": false} {
		if _, err := d.Route(address, SSH); (err == nil) != ok {
			t.Errorf("%q: error %v", address, err)
		}
	}
	if _, err := d.Route("xen2", " "); err == nil {
		t.Error("an empty transport is accepted")
	}
}

// A program on the target is named with its host, and its words arrive as they are.
func TestRoute_Run(t *testing.T) {
	d := New(nil)
	r, err := d.Route("xen2", `sh -c 'shift; eval "$*"' x`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.run(t.Context(), "printf", "%s|", "a b", "it's", "$HOME", "plain")
	if err != nil || string(out) != "a b|it's|$HOME|plain|" {
		t.Errorf("%q, error %v", out, err)
	}
	_, err = r.run(t.Context(), "no-such-program")
	var failed *FailedError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "no-such-program on xen2") {
		t.Errorf("error %v", err)
	}
}

var _ operate.Route = (*Route)(nil)
