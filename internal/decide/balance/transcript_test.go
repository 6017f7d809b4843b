package balance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/numavisor/numavisor/internal/decide/transcripttest"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestPlan_Transcripts plays the conversations in testdata. The package's own
// commands:
//
//	guest      name=db vcpus=4 memory=8G on=(0,1) used=3 [wait=1] [mbps=500]
//	           vCPUs may run on the nodes of on, which is also where the placement
//	           reserves memory; used and wait are CPUs. More:
//	             memory-on=(1:8G)  where the memory is, instead of on
//	             cells=2           the guest sees this number of cells
//	             unmanaged         others made it
//	             unmeasured        its load is not known
//	             vfio              a device pins its memory
//	balance    the plan; every state on the way is checked. With just-seen, guests
//	           must be degraded for a while first, else what is seen has lasted long enough
//	carry-out  the guests are where the plan says, and get the CPUs they waited for
//	load       name=db used=1 wait=0: what the guest does from now on
//	wait       for=5m: time passes
func TestPlan_Transcripts(t *testing.T) {
	transcripttest.Play(t, func(made *transcripttest.World) map[string]transcripttest.Command {
		w := &world{World: made, now: noon}
		w.Host.Taken = w.now
		return map[string]transcripttest.Command{
			"guest":     w.guest,
			"balance":   w.balance,
			"carry-out": w.carryOut,
			"load":      w.load,
			"wait":      w.wait,
		}
	})
}

type world struct {
	*transcripttest.World
	past Past
	now  time.Time
	plan plan.Plan
}

func (w *world) guest(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	v, err := guestOf(t, d)
	if err != nil {
		return "", err
	}
	add(&w.Host, v)
	return "", nil
}

func (w *world) balance(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	lasting := !d.HasArg("just-seen")
	made, err := Plan(Request{Host: &w.Host, Policy: w.Policy, Past: w.past, Now: w.now, Lasting: lasting})
	if err != nil {
		return "", err
	}
	legal(t, &w.Host, w.Policy, made)
	w.plan = made
	w.past.Degraded = made.Degraded
	return text(made), nil
}

func (w *world) load(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	g, err := w.NamedGuest(t, d)
	if err != nil {
		return "", err
	}
	load := inventory.GuestLoad{Window: time.Minute}
	d.ScanArgs(t, "used", &load.CPU)
	d.ScanArgs(t, "wait", &load.Wait)
	g.Seen.Load = &load
	return "", nil
}

func (w *world) wait(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var pause string
	d.ScanArgs(t, "for", &pause)
	length, err := time.ParseDuration(pause)
	w.now = w.now.Add(length)
	w.Host.Taken = w.now
	return "", err
}

func (w *world) carryOut(*testing.T, *datadriven.TestData) (string, error) {
	for _, m := range w.plan.Moves {
		for _, g := range m.Guests {
			moved, ok := w.Host.Guest(g.Guest)
			if !ok {
				return "", fmt.Errorf("the plan moves %s, which is not on the host", g.Guest)
			}
			from := moved.Placement.Nodes
			w.past.Moves = append(w.past.Moves,
				Moved{Guest: g.Guest, At: w.now, From: from, To: g.Placement.Nodes, Demand: g.Demand})
		}
		w.Host = carriedOut(w.Host, m)
	}
	for i := range w.Host.Guests { // what was waited for is now used
		if l := w.Host.Guests[i].Seen.Load; l != nil {
			moved := *l
			moved.CPU, moved.Wait = l.CPU+l.Wait, 0
			w.Host.Guests[i].Seen.Load = &moved
		}
	}
	return "", nil
}

// guestOf reads a guest's line.
func guestOf(t *testing.T, d *datadriven.TestData) (vm, error) {
	t.Helper()
	var v vm
	var memory string
	d.ScanArgs(t, "name", &v.name)
	d.ScanArgs(t, "vcpus", &v.vcpus)
	d.ScanArgs(t, "memory", &memory)
	for name, value := range map[string]*float64{"used": &v.used, "wait": &v.wait, "mbps": &v.mbps} {
		d.MaybeScanArgs(t, name, value)
	}
	var err error
	if v.memory, err = topology.ParseBytes(memory); err != nil {
		return vm{}, err
	}
	v.memOn = topology.MemoryByNode{}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "on":
			set, err := topology.ParseSet[topology.NodeID](strings.Join(arg.Vals, ","))
			if err != nil {
				return vm{}, err
			}
			v.cpus = set.IDs()
		case "memory-on":
			for _, val := range arg.Vals {
				node, size, _ := strings.Cut(val, ":")
				set, err := topology.ParseSet[topology.NodeID](node)
				if err != nil {
					return vm{}, err
				}
				id, _ := set.First()
				if v.memOn[id], err = topology.ParseBytes(size); err != nil {
					return vm{}, err
				}
			}
		case "unmanaged":
			v.notOurs = true
		case "unmeasured":
			v.unmeasured = true
		case "vfio":
			v.change = func(g *inventory.Guest) { g.Config.Devices = []string{"0000:3b:00.0"} }
		case "cells":
			var count int
			arg.Scan(t, 0, &count)
			v.spec = func(s *guest.Spec) { s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: count} }
		}
	}
	if len(v.memOn) == 0 {
		for _, n := range v.cpus {
			v.memOn[n] = v.memory / topology.Bytes(len(v.cpus))
		}
	}
	return v, nil
}

// text shows a plan, and which guests are degraded, and since when.
func text(p plan.Plan) string {
	var b strings.Builder
	for _, s := range p.Degraded {
		fmt.Fprintf(&b, "degraded: %s: %s\n", s.Guest, s.Why)
	}
	b.WriteString(p.Text())
	return b.String()
}
