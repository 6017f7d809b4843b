package operate_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// A dry run of bind says where the balancer would choose otherwise, and only
// then; a bind does not ask it.
func TestBind_DryRunNamesTheBalancersChoice(t *testing.T) {
	folder := folderOf(t)
	differ, agree := 0, 0
	for _, k := range kinds {
		if k.Huge {
			continue // its pool is smaller than the guest
		}
		for _, pins := range []string{"0-3", "4-7", "12-15", "0-15"} {
			w := newWorld(t, square, folder)
			other := kinds[3].Guest("other", 2048*mib, []topology.NodeID{0}, cpus("0-3"))
			other.Config.Immediate = true
			w.MustAdd(t, other)
			w.MustAdd(t, k.Guest("g", 512*mib, []topology.NodeID{0, 0}, cpus(pins)))
			if _, err := w.Touch("g", 8*gib); err != nil {
				t.Fatal(err)
			}
			inv, err := w.Joined.Observe(context.Background(), "g")
			if err != nil {
				t.Fatal(err)
			}
			p, err := balance.Plan(balance.Request{Host: &inv, Policy: w.Joined.Policy, Now: inv.Taken, Lasting: true})
			if err != nil {
				t.Fatal(err)
			}
			b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "g", DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			var copied topology.Bytes
			for _, s := range b.Plan.Steps {
				if s.Kind == plan.MoveRange {
					copied += s.Bytes
				}
			}
			var target topology.NodeSet
			moved := false
			for _, m := range p.Moves {
				for _, part := range m.Guests {
					if part.Guest == "g" {
						moved, target = true, part.Placement.Nodes
					}
				}
			}
			want := !moved && copied > 0 || moved && !target.Equal(b.Plan.Placement.Nodes)
			if got := b.Balancing != nil; got != want {
				t.Errorf("%s on CPUs %s: bind to nodes %s, balancer %+v: named %v", k.Name, pins,
					b.Plan.Placement.Nodes, p.Moves, got)
			}
			if b.Balancing == nil {
				agree++
				continue
			}
			differ++
			if b.Balancing.Why == "" || (b.Balancing.Move != nil) != moved || !b.Balancing.Nodes.Equal(target) {
				t.Errorf("%s on CPUs %s: %+v", k.Name, pins, b.Balancing)
			}
		}
	}
	if differ == 0 || agree == 0 {
		t.Errorf("%d cases differ and %d agree; the test needs both", differ, agree)
	}
}

// The balancer weighs what is there against the price of a move, bind chooses
// nodes for the guest alone: on a full or half full node they differ.
func TestBind_DryRunNamesTheBalancersMove(t *testing.T) {
	for _, c := range []struct {
		others   int    // guests on node 0, where the memory of g is; its vCPUs are on node 3
		bind     string // nodes that bind chooses
		balancer string // and those of the balancer; empty: the same
		kind     plan.MoveKind
	}{
		{others: 0, bind: "0"},
		{others: 3, bind: "1", balancer: "0", kind: plan.Repin}, // node 0 has a CPU for each vCPU
		// Node 0 has no CPUs for g, and one too few for the others: the balancer also moves one of them, to node 1.
		{others: 5, bind: "1", balancer: "2", kind: plan.MoveGuest},
	} {
		w := newWorld(t, square, folderOf(t))
		for i := range c.others {
			o := kinds[3].Guest(fmt.Sprint("o", i), 400*mib, []topology.NodeID{0}, cpus("0-3"))
			o.Config.Immediate = true
			w.MustAdd(t, o)
		}
		d := kinds[3].Guest("g", 128*mib, []topology.NodeID{0}, cpus("12-15"))
		d.Config.Immediate = true
		w.MustAdd(t, d)
		b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "g", DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Plan.Placement.Nodes; !got.Equal(nodes(c.bind)) {
			t.Fatalf("%d others: bind to nodes %s, want %s", c.others, got, c.bind)
		}
		switch o := b.Balancing; {
		case c.balancer == "" && o != nil:
			t.Errorf("%d others: the balancer differs: %+v", c.others, o)
		case c.balancer == "":
		case o == nil || o.Move == nil:
			t.Errorf("%d others: %+v, want a move to nodes %s", c.others, o, c.balancer)
		case !o.Nodes.Equal(nodes(c.balancer)) || o.Move.Kind != c.kind || o.Cost <= 0 || o.BindCost != b.Why.Cost:
			t.Errorf("%d others: %+v, want a %s to nodes %s", c.others, o, c.kind, c.balancer)
		}
		limited, err := w.Joined.Bind(context.Background(),
			operate.BindRequest{Name: "g", DryRun: true, Change: limitTo("2")})
		if err != nil || limited.Balancing != nil {
			t.Errorf("%d others, nodes given by the operator: %+v, %v", c.others, limited.Balancing, err)
		}
	}
}
