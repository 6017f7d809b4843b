package migrate

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestRebalance_RelievesAnOverloadedHost(t *testing.T) {
	w := crowded(t)
	p := w.rebalance(Limits{})
	if len(p.Migrations) != 1 {
		t.Fatalf("%d migrations, and one at once is allowed: %+v", len(p.Migrations), p.Blocked)
	}
	m := p.Migrations[0]
	if m.From != "h0" || m.To != "h1" || m.Relieves == "" || m.Benefit.WaitCPUs <= 0 || m.Price.Bytes != 2*gib ||
		m.Price.Took != 2*time.Second || m.Price.Downtime == 0 || m.Advised || m.Waits {
		t.Errorf("%+v", m)
	}
	before := w.lost()
	w.make(m)
	if saved := before - w.lost(); saved < m.Benefit.WaitCPUs*0.8 || saved > m.Benefit.WaitCPUs*1.2 {
		t.Errorf("saves %.2f CPUs, and %.2f were predicted", saved, m.Benefit.WaitCPUs)
	}
	many := crowded(t).rebalance(Limits{PerHost: 9, Fleet: 9})
	if len(many.Migrations) != 2 {
		t.Errorf("%d migrations; one from each node relieves the host", len(many.Migrations))
	}
}

// What keeps a VM from migrating is named.
func TestRebalance_NamesWhatBlocks(t *testing.T) {
	for _, c := range []struct {
		want    Obstacle
		world   func(w *world)
		request func(w *world, r *Request)
	}{
		{Devices, func(w *world) {
			for _, v := range w.vms {
				v.devices = []string{"0000:01:00.0"}
			}
		}, nil},
		{Mirrored, func(w *world) {
			for _, v := range w.vms {
				v.placement.Handoff = &guest.Handoff{Min: 1, Weight: 1}
			}
		}, nil},
		{NotRunning, func(w *world) {
			for _, v := range w.vms {
				v.paused = true
			}
		}, nil},
		{Unmanaged, nil, func(_ *world, r *Request) { r.VMs = nil }},
		{Storage, nil, func(_ *world, r *Request) {
			for name := range r.VMs {
				r.VMs[name] = VM{}
			}
		}},
		{Cooldown, nil, func(w *world, r *Request) {
			for name := range r.VMs {
				r.VMs[name] = VM{SharedStorage: new(true), NotBefore: w.now.Add(time.Minute)}
			}
		}},
		{NoHost, func(w *world) {
			for i := range 4 {
				w.run(1, oneNode(fmt.Sprintf("idle%d", i), 4, 1), 0, topology.NodeID(i%2))
			}
		}, nil},
		{NoGain, func(w *world) {
			for i := range 4 {
				w.run(1, oneNode(fmt.Sprintf("busy%d", i), 2, 1), 1.8, topology.NodeID(i%2))
			}
		}, nil},
		{AtLimit, nil, func(_ *world, r *Request) { r.Running = []Running{{"other", "h0", "h1"}} }},
		{Cooldown, nil, func(w *world, r *Request) {
			for _, v := range w.vms {
				r.History = append(r.History, Migrated{v.spec.Name, "h9", "h0", w.now.Add(-time.Minute)})
			}
		}},
	} {
		w := crowded(t)
		if c.world != nil {
			c.world(w)
		}
		r := w.request()
		r.Lasting = true
		if c.request != nil {
			c.request(w, &r)
		}
		p, err := Rebalance(r)
		if err != nil || len(p.Migrations) > 0 {
			t.Errorf("%s: %+v, %v", c.want, p.Migrations, err)
		}
		found := false
		for _, b := range p.Blocked {
			found = found || b.Kind == c.want && b.Host == "h0" && b.Why != ""
		}
		if !found {
			t.Errorf("%s: not among %+v", c.want, p.Blocked)
		}
	}
}

// A host with an idle node helps itself.
func TestRebalance_LocalMovesComeFirst(t *testing.T) {
	w := newWorld(t, twice, "nodes:2 cores:4 memory:16G", "nodes:2 cores:4 memory:16G")
	for i := range 3 {
		w.run(0, oneNode(fmt.Sprintf("vm%d", i), 2, 2), 2, 0)
	}
	p := w.rebalance(Limits{})
	if len(p.Migrations) > 0 || len(p.Blocked) == 0 || p.Blocked[0].Kind != LocalFirst {
		t.Errorf("%+v", p)
	}
}

// Nothing migrates before the host's own plan could say that it helps, however short the limit is.
func TestRebalance_WaitsForTheHostsOwnPlan(t *testing.T) {
	for _, step := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		w := newWorld(t, twice, "nodes:2 cores:4 memory:16G", "nodes:2 cores:4 memory:16G")
		for i := range 3 {
			w.run(0, oneNode(fmt.Sprintf("vm%d", i), 2, 2), 2, 0)
		}
		for round := range 40 {
			r := w.request()
			r.Limits.Lasts = time.Millisecond
			p, err := Rebalance(r)
			if err != nil || len(p.Migrations) > 0 {
				t.Fatalf("every %v, plan %d: %+v, %v", step, round, p.Migrations, err)
			}
			w.local.Local = p.Local
			w.now = w.now.Add(step)
		}
	}
}

func TestRebalance_GainsMustLast(t *testing.T) {
	w := crowded(t)
	p, err := Rebalance(w.request())
	if err != nil || len(p.Migrations) > 0 || len(p.Blocked) == 0 || p.Blocked[0].Kind != TooShort {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestRebalance_AdvisesWhatTheModeForbids(t *testing.T) {
	w := crowded(t)
	w.policy.Balance.Mode = policy.ModeAdvise
	p := w.rebalance(Limits{})
	if len(p.Migrations) == 0 || !p.Migrations[0].Advised {
		t.Errorf("%+v", p)
	}
	w.policy.Balance.Mode = policy.ModeOff
	if p := w.rebalance(Limits{}); len(p.Migrations) > 0 {
		t.Errorf("%+v", p)
	}
	for _, b := range []policy.Balance{
		{Migrate: policy.ModeAdvise},
		{Windows: []policy.Window{mustWindow(t, "02:00-03:00")}}, // it is noon
	} {
		w.policy.Balance = b
		if p := w.rebalance(Limits{}); len(p.Migrations) == 0 || !p.Migrations[0].Advised {
			t.Errorf("%+v: %+v", b, p)
		}
	}
	w.policy.Balance = policy.Balance{Migrate: policy.ModeOff}
	if p := w.rebalance(Limits{}); len(p.Migrations) > 0 {
		t.Errorf("%+v", p)
	}
}

func mustWindow(t *testing.T, text string) policy.Window {
	t.Helper()
	w, err := policy.ParseWindow(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// After any plan, the hosts have room for each VM on both sides, less demand waits than before,
// the fleet is as it was, and no limit is exceeded.
func TestRebalance_IsLegalAndNeverWorse(t *testing.T) {
	count, worlds := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawCrowded(t)
		limits := Limits{PerHost: rapid.IntRange(1, 4).Draw(t, "per host"),
			Fleet: rapid.IntRange(1, 6).Draw(t, "fleet")}
		p := w.rebalance(limits)
		f, at := w.fleet(), map[string]int{}
		for _, m := range p.Migrations {
			legal(t, f, w.policy, m)
			at[m.From]++
			at[m.To]++
		}
		for host, n := range at {
			if n > limits.PerHost {
				t.Fatalf("%d migrations of host %s", n, host)
			}
		}
		if len(p.Migrations) > limits.Fleet {
			t.Fatalf("%d migrations", len(p.Migrations))
		}
		worlds++
		count += len(p.Migrations)
		before := w.lost()
		for _, m := range p.Migrations {
			w.make(m)
		}
		if after := w.lost(); after > before-0.005*float64(len(p.Migrations)) {
			t.Fatalf("%.4f CPUs of demand wait after %d migrations, %.4f before", after, len(p.Migrations), before)
		}
	})
	if worlds >= 100 && count < worlds/5 {
		t.Errorf("only %d migrations in %d worlds", count, worlds)
	}
	t.Logf("%d migrations in %d worlds", count, worlds)
}

// legal adds a migration to a fleet whose source still has the VM.
func legal(t *rapid.T, f *schedule.Fleet, p policy.Policy, m Migration) {
	h, _ := f.Host(m.To)
	if err := check.Error(m.VM, check.Placement(h.Inventory, p, m.Spec, m.Placement)); err != nil {
		t.Fatal(err)
	}
	if err := f.Add(&schedule.Decision{Host: m.To, Spec: m.Spec, Placement: m.Placement}); err != nil {
		t.Fatal(err)
	}
}

func TestRebalance_LeavesTheFleetAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawCrowded(t)
		r := w.request()
		r.Lasting = true
		if _, err := Rebalance(r); err != nil {
			t.Fatal(err)
		}
		if _, err := Drain(r, "h0"); err != nil {
			t.Fatal(err)
		}
		Headroom(r.Fleet, r.VMs)
		for _, name := range r.Fleet.Names() {
			got, _ := r.Fleet.Host(name)
			want, _ := w.fleet().Host(name)
			if len(got.Inventory.Guests) != len(want.Inventory.Guests) || len(got.Inventory.Claims) > 0 {
				t.Fatalf("host %s has %d VMs and %d claims, had %d", name, len(got.Inventory.Guests),
					len(got.Inventory.Claims), len(want.Inventory.Guests))
			}
		}
	})
}

// Plan after plan, migrations end while demand stays the same.
func TestRebalance_Settles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawCrowded(t)
		quiet := 0
		for round := range 30 {
			p := w.rebalance(Limits{PerHost: 2, Fleet: 4})
			for _, m := range p.Migrations {
				w.make(m)
			}
			w.now = w.now.Add(3 * time.Hour)
			if quiet++; len(p.Migrations) > 0 {
				quiet = 0
			}
			if round == 29 && quiet < 15 {
				t.Fatalf("still migrating after %d rounds: %+v", round, w.past)
			}
		}
	})
}
