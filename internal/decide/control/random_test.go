package control_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Whatever guests, the kernel, jobs and operators do: the controller starts one job at a time, and one change of a
// setting. When all guests are idle, it restores kernel balancing and has nothing left to do.
func TestController_SurvivesWhateverHappens(t *testing.T) {
	seeds := 120
	if testing.Short() {
		seeds = 20
	}
	enabled := 0
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newRandomWorld(t, rand.New(rand.NewPCG(uint64(seed), 1)))
			for range 250 {
				w.happens()
			}
			enabled += w.enabled
			w.calmDown()
		})
	}
	if enabled < seeds/3 {
		t.Errorf("kernel balancing was enabled %d times: the test misses its point", enabled)
	}
}

// randomWorld is a world in which things happen by chance.
type randomWorld struct {
	*world

	r *rand.Rand
	// alike says that all guests can be served by kernel balancing.
	alike   bool
	enabled int // how often the controller enabled kernel balancing
}

func newRandomWorld(t *testing.T, r *rand.Rand) *randomWorld {
	t.Helper()
	w := &randomWorld{world: newWorld(t), r: r, alike: r.IntN(4) > 0}
	top, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:%d memory:16G square distances:10,16,28", 2+2*r.IntN(2),
		1+r.IntN(4)))
	w.must(err)
	w.topology, w.kernel.NUMABalancing = top, "0"
	w.policy.Balance.DegradedFor = policy.Duration(1+r.IntN(10)) * policy.Duration(time.Second)
	w.policy.Balance.Guests = map[string]policy.Mode{}
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprint("g", i)
		g := w.add(name, 1+r.IntN(3), topology.Bytes(1+r.IntN(4))*topology.GiB, w.node(), w.node())
		g.Config.Source, w.policy.Balance.Guests[name] = "anonymous", policy.ModeAuto
		if w.alike || r.IntN(2) == 0 {
			spread(g, &w.topology)
		}
		if !w.alike {
			g.Config.Source = []string{"anonymous", "memfd"}[r.IntN(2)]
			w.policy.Balance.Guests[name] = []policy.Mode{policy.ModeAuto, policy.ModeAdvise, policy.ModeOff}[r.IntN(3)]
		}
	}
	w.start(0)
	return w
}

func (w *randomWorld) node() topology.NodeID {
	return w.topology.Nodes[w.r.IntN(len(w.topology.Nodes))].ID
}

// second lets a second pass, in which the controller may start one job and one change of a setting.
func (w *randomWorld) second() {
	job, remedy := w.job, w.remedy
	w.now = w.now.Add(time.Second)
	w.turn()
	if job != nil && w.job != job {
		w.t.Fatalf("a job began before the end of another\n%s", w.out.String())
	}
	if remedy != nil && w.remedy != remedy {
		w.t.Fatalf("a setting was to be changed before the end of another change\n%s", w.out.String())
	}
}

// happens is one event, and mostly the time until the next sample.
func (w *randomWorld) happens() {
	names := slices.Sorted(maps.Keys(w.guests))
	g := w.guests[names[w.r.IntN(len(names))]]
	switch w.r.IntN(14) {
	case 0, 1:
		g.cpu = float64(w.r.IntN(3)) / 2 * float64(g.Config.VCPUs)
	case 2:
		g.wait = w.r.Float64() * g.cpu
	case 3:
		g.far = !g.far
	case 4:
		w.brings = w.r.IntN(3) * 100
	case 5:
		if g.Placement == nil && !w.alike {
			w.lay(g, g.Config.Memory, w.node())
		}
	case 6:
		if w.r.IntN(10) == 0 {
			w.step(control.Pause{Order: w.order()})
		}
	case 7:
		w.step(control.Resume{Order: w.order()})
	case 8:
		w.step(control.RosterChanged{})
	case 9, 10:
		w.endJob([]string{"done", "done", "gave-way", "stopped", "failed", "stale", "refused", "undone"}[w.r.IntN(8)])
	case 11, 12:
		w.endSetting(w.r.IntN(8) == 0)
	}
	w.second()
}

func (w *randomWorld) endSetting(fails bool) {
	r := w.remedy
	if r == nil {
		return
	}
	w.remedy = nil
	e := control.SettingChanged{What: r.Path}
	switch {
	case fails:
		e.Err, e.NotBegun = errLost, true
	case r.Path == plan.NUMABalancingPath:
		e.Former, w.kernel.NUMABalancing = w.kernel.NUMABalancing, r.Value
		w.journalSetting(r, e.Former)
		if r.Value != "0" {
			w.enabled++
		}
	}
	w.step(e)
}

var errLost = errors.New("it does not answer")

// endJob ends the running job. A move that began restores the setting that it took over, or reports that it is held for
// memory that it has left.
func (w *randomWorld) endJob(how string) {
	j := w.job
	if j == nil {
		return
	}
	w.job = nil
	began := how != "refused" && how != "stale"
	e := control.JobEnded{Stopped: how == "stopped", Stale: how == "stale"}
	if how != "done" && how != "gave-way" && how != "undone" {
		e.Err = errLost
	}
	switch {
	case j.Kind == control.RecoverJob:
		for _, open := range journal.InterruptedMoves(w.journal) {
			e.Moved = append(e.Moved, w.end(open.ID, *open.Move, "done"))
		}
		e.Err, e.Stopped, e.Stale = nil, false, false
	case j.Kind != control.MoveJob:
		if g := w.guests[j.Guest]; how == "done" && g.Placement != nil {
			w.settle(g)
		}
	case began:
		w.journalMove(journal.MoveBegan, j.ID, j.Move, false)
		m := w.end(j.ID, j.Move, how)
		if m.End == journal.MoveDone && w.r.IntN(2) == 0 {
			m.Left = j.Move.Names()[:1]
		}
		if j.Held != nil && len(m.Left) > 0 && w.r.IntN(2) == 0 {
			m.Held, m.Pauses = j.Held, w.r.IntN(2) == 0
		} else if j.Held != nil {
			w.kernel.NUMABalancing = j.Held.Former
		}
		e.Moved = append(e.Moved, m)
	}
	w.step(e)
}

// calmDown ends everything, and requires that the controller comes to rest.
func (w *randomWorld) calmDown() {
	w.step(control.Resume{Order: w.order()})
	w.brings = 0
	for _, g := range w.guests {
		g.cpu, g.wait, g.far = 0, 0, false
	}
	for range 2 * 3600 / 10 { // the rest of moves waits for a quiet time, or an hour
		for range 3 {
			w.endJob("done")
			w.endSetting(false)
		}
		w.second()
		w.now = w.now.Add(9 * time.Second)
	}
	if w.job != nil || w.remedy != nil || w.kernel.NUMABalancing != "0" {
		w.t.Errorf("at the end kernel balancing is %s, job %+v, setting %+v\n%s", w.kernel.NUMABalancing, w.job, w.remedy,
			w.out.String())
	}
}
