package control_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestTranscripts replays the histories in testdata: each command is something
// that happens, below it is what the controller makes of it. Rewrite them with
//
//	go test ./internal/decide/control -rewrite
//
// and read the difference. The commands:
//
//	host                             what topology.Synthetic takes, below
//	kernel numa-balancing=V numad=BOOL
//	held former=V value=V            a move of a daemon that was killed has set kernel.numa_balancing
//	guest NAME vcpus=N memory=GIB on=NODE runs=NODE cpu=N [wait=N] [placed=NODE] [spread]
//	    [source=S]                   of its memory; memfd without it
//	    [strays]                     its vCPUs may run anywhere, and happen to run at its memory
//	    [roams]                      they may run anywhere, and do
//	    [own=CPUS]                   placed: each vCPU has one of these for itself
//	change NAME [on=NODE] [runs=NODE] [cpu=N] [wait=N]     others change it
//	rebind NAME on=CPUS              a repair gives it a placement on these CPUs
//	policy                           YAML below; before start
//	set-policy                       an order; YAML below
//	start [copies=MIB]               of the daemon; again: after kill -9; how much memory a trial copies in a second
//	run LENGTH                       a sample every second
//	clock back=D                     it is set back
//	job (done|undone|cancelled|stopped|failed|refused|killed) [left=NAMES|idle=NAMES] [held=V]
//	                                 the running job ends; why below; what it left of guests (a+b); the value of
//	                                 kernel.numa_balancing that it set, was 0, and could not restore
//	setting (done|failed|not-begun)  the change of a setting ends; why below
//	pause [for=D], resume, accept [ID], cancel [ID]             orders; why below
//	journal (full|writable)          whether it can be appended to
//	away, back                       whether the host can be observed; why below
//	roster                           guests came or went
//	status, stop
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		if filepath.Ext(path) != ".txt" {
			t.Fatalf("%s is no transcript", path)
		}
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			w.t = t
			w.out.Reset()
			do, ok := commands[d.Cmd]
			if !ok {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			do(w, d)
			return w.out.String()
		})
	})
}

var commands = map[string]func(*world, *datadriven.TestData){
	"host":   (*world).hostCommand,
	"kernel": (*world).kernelCommand,
	"held":   (*world).heldCommand,
	"guest":  (*world).guestCommand,
	"change": (*world).changeCommand,
	"rebind": (*world).rebindCommand,
	"policy": func(w *world, d *datadriven.TestData) { w.policy = w.parsePolicy(d) },
	"set-policy": func(w *world, d *datadriven.TestData) {
		w.step(control.SetPolicy{Order: w.order(), Policy: w.parsePolicy(d)})
	},
	"start":   (*world).startCommand,
	"run":     (*world).runCommand,
	"clock":   (*world).clockCommand,
	"job":     (*world).jobCommand,
	"setting": (*world).settingCommand,
	"pause":   (*world).pauseCommand,
	"resume":  func(w *world, _ *datadriven.TestData) { w.step(control.Resume{Order: w.order()}) },
	"accept":  (*world).acceptCommand,
	"cancel":  (*world).cancelCommand,
	"journal": func(w *world, d *datadriven.TestData) { w.full = first(d) == "full" },
	"away":    func(w *world, d *datadriven.TestData) { w.away = strings.TrimSpace(d.Input) },
	"back":    func(w *world, _ *datadriven.TestData) { w.away = "" },
	"roster":  func(w *world, _ *datadriven.TestData) { w.step(control.RosterChanged{}) },
	"status":  (*world).statusCommand,
	"stop":    func(w *world, _ *datadriven.TestData) { w.step(control.Stop{}) },
}

// first is the first argument, without a value.
func first(d *datadriven.TestData) string {
	if len(d.CmdArgs) == 0 {
		return ""
	}
	return d.CmdArgs[0].Key
}

// order is the id of a new order.
func (w *world) order() control.OrderID { w.orders++; return w.orders }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) parsePolicy(d *datadriven.TestData) policy.Policy {
	p, err := policy.Parse(strings.NewReader(d.Input))
	w.must(err)
	return p
}

func (w *world) hostCommand(d *datadriven.TestData) {
	t, err := topology.Synthetic(strings.TrimSpace(d.Input))
	w.must(err)
	w.topology = t
}

func (w *world) kernelCommand(d *datadriven.TestData) {
	d.MaybeScanArgs(w.t, "numa-balancing", &w.kernel.NUMABalancing)
	d.MaybeScanArgs(w.t, "numad", &w.kernel.NumadRunning)
	d.MaybeScanArgs(w.t, "brings", &w.brings)
}

func (w *world) heldCommand(d *datadriven.TestData) {
	s := journal.SettingChange{Path: plan.NUMABalancingPath, Held: true}
	d.ScanArgs(w.t, "former", &s.Former)
	d.ScanArgs(w.t, "value", &s.Value)
	w.journal = append(w.journal, journal.Entry{At: w.now, ID: "e1", Effect: journal.EffectSetting,
		Kind: journal.EffectSetting.Began(), Setting: &s})
}

func (w *world) guestCommand(d *datadriven.TestData) {
	var vcpus, gib, on, runs, placed int
	d.ScanArgs(w.t, "vcpus", &vcpus)
	d.ScanArgs(w.t, "memory", &gib)
	d.ScanArgs(w.t, "on", &on)
	d.ScanArgs(w.t, "runs", &runs)
	g := w.add(first(d), vcpus, topology.Bytes(gib)*topology.GiB, topology.NodeID(on), topology.NodeID(runs))
	d.MaybeScanArgs(w.t, "source", &g.Config.Source)
	if g.near = d.HasArg("strays"); g.near {
		for i := range g.Seen.Threads {
			g.Seen.Threads[i].Affinity = w.topology.CPUSet()
		}
	}
	if d.HasArg("roams") {
		for i := range g.Seen.Threads {
			g.Seen.Threads[i].Affinity = w.topology.CPUSet()
		}
	}
	if d.HasArg("spread") {
		spread(g, &w.topology)
	}
	w.load(g, d)
	if d.MaybeScanArgs(w.t, "placed", &placed) {
		w.place(g, topology.NodeID(placed))
	}
	if own := ""; d.MaybeScanArgs(w.t, "own", &own) {
		w.dedicate(g, topology.MustParseSet[topology.CPUID](own))
	}
}

func (w *world) rebindCommand(d *datadriven.TestData) {
	var on string
	d.ScanArgs(w.t, "on", &on)
	g := w.guests[first(d)]
	p := *g.Placement // the controller may hold the old one
	p.VCPUs = slices.Clone(p.VCPUs)
	for i := range p.VCPUs {
		p.VCPUs[i].CPUs = topology.MustParseSet[topology.CPUID](on)
	}
	g.Placement = &p
	w.settle(g)
}

// spread divides a guest's memory equally over all nodes; its vCPUs may run anywhere.
func spread(g *vm, t *topology.Topology) {
	all := g.Seen.MemoryByNode.Total()
	g.Seen.MemoryByNode = topology.MemoryByNode{}
	for i := range t.Nodes {
		g.Seen.MemoryByNode[t.Nodes[i].ID] = all / topology.Bytes(len(t.Nodes))
	}
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity = t.CPUSet()
	}
}

func (w *world) load(g *vm, d *datadriven.TestData) {
	for key, value := range map[string]*float64{"cpu": &g.cpu, "wait": &g.wait} {
		var text string
		if d.MaybeScanArgs(w.t, key, &text) {
			number, err := strconv.ParseFloat(text, 64)
			w.must(err)
			*value = number
		}
	}
}

func (w *world) changeCommand(d *datadriven.TestData) {
	g, ok := w.guests[first(d)]
	if !ok {
		d.Fatalf(w.t, "no guest %q", first(d))
	}
	var node int
	if d.MaybeScanArgs(w.t, "on", &node) {
		w.lay(g, g.Config.Memory, topology.NodeID(node))
	}
	if d.MaybeScanArgs(w.t, "runs", &node) {
		w.runOn(g, topology.NodeID(node))
	}
	w.load(g, d)
}

func (w *world) startCommand(d *datadriven.TestData) {
	copies := 0
	d.MaybeScanArgs(w.t, "copies", &copies)
	w.start(topology.Bytes(copies) * topology.MiB)
}

// start starts the daemon on a host on which a trial copies so much memory in a second.
func (w *world) start(copyRate topology.Bytes) {
	w.c = control.New(control.Options{
		Policy: w.policy, Sample: time.Second, Observe: 30 * time.Second, Plan: 5 * time.Second,
		SaveAlarms: 30 * time.Second,
	})
	w.state, w.job, w.remedy, w.last = "", nil, nil, time.Time{}
	w.step(control.Start{Entries: w.journal, Alarms: w.alarms, NUMABalancing: w.kernel.NUMABalancing,
		CopyRate: copyRate})
}

func (w *world) runCommand(d *datadriven.TestData) {
	length, err := time.ParseDuration(first(d))
	w.must(err)
	for end := w.now.Add(length); w.now.Before(end); {
		w.now = w.now.Add(time.Second)
		w.turn()
	}
}

func (w *world) clockCommand(d *datadriven.TestData) {
	var back string
	d.ScanArgs(w.t, "back", &back)
	by, err := time.ParseDuration(back)
	w.must(err)
	w.now, w.began = w.now.Add(-by), w.began.Add(-by) // the transcript's times go on
}

// journalMove writes what a job itself puts into the journal.
func (w *world) journalMove(kind journal.Kind, id string, m plan.Move, cancelled bool) {
	w.journal = append(w.journal, journal.Entry{
		At: w.now, Kind: kind, ID: id, Guests: m.Names(), What: m.String(),
		Move: &m, Cancelled: cancelled,
	})
}

func (w *world) jobCommand(d *datadriven.TestData) {
	j := w.job
	if j == nil {
		d.Fatalf(w.t, "no job runs")
	}
	w.job = nil
	how, why := first(d), strings.TrimSpace(d.Input)
	if how == "killed" { // with the daemon: the controller is gone
		w.journalMove(journal.MoveBegan, j.ID, j.Move, false)
		return
	}
	e := control.JobEnded{Stopped: how == "stopped", Stale: how == "stale"}
	if how == "stopped" || how == "failed" || how == "refused" || how == "stale" {
		e.Err = errors.New(why)
	}
	switch j.Kind {
	case control.RepairJob, control.RestJob:
		if how == "done" {
			w.settle(w.guests[j.Guest])
		}
	case control.MoveJob:
		if how != "refused" && how != "stale" {
			w.journalMove(journal.MoveBegan, j.ID, j.Move, false)
			e.Moved = append(e.Moved, w.end(j.ID, j.Move, how))
			w.leave(&e.Moved[0], d)
			w.hold(&e.Moved[0], d)
		}
	case control.RecoverJob:
		for _, open := range journal.InterruptedMoves(w.journal) {
			e.Moved = append(e.Moved, w.end(open.ID, *open.Move, how))
		}
	}
	w.step(e)
}

// leave gives guests of a move the limit to all nodes that they had before, and idle ones their memory.
func (w *world) leave(m *control.Moved, d *datadriven.TestData) {
	var names string
	idle := d.MaybeScanArgs(w.t, "idle", &names)
	if !idle && !d.MaybeScanArgs(w.t, "left", &names) {
		return
	}
	m.Left = strings.Split(names, "+")
	if idle {
		m.Idle = m.Left
	}
	for _, name := range m.Left {
		g := w.guests[name]
		at := slices.IndexFunc(m.Move.Guests, func(g plan.GuestMove) bool { return g.Guest == name })
		if idle {
			g.Seen.MemoryByNode = maps.Clone(m.Move.Guests[at].Undo.Memory)
			m.Bytes -= m.Move.Guests[at].Bytes
		}
		for i := range g.Seen.Threads {
			g.Seen.Threads[i].Mems = w.topology.NodeSet()
		}
	}
}

// hold leaves kernel balancing with a value that a move could not restore.
func (w *world) hold(m *control.Moved, d *datadriven.TestData) {
	var value string
	if d.MaybeScanArgs(w.t, "held", &value) {
		w.kernel.NUMABalancing = value
		m.Held = &journal.SettingChange{Path: plan.NUMABalancingPath, Former: "0", Value: value, Held: true}
		m.Pauses = d.HasArg("pauses")
	}
}

// end ends a move as the transcript says.
func (w *world) end(id string, m plan.Move, how string) control.Moved {
	moved := control.Moved{Move: m}
	for _, g := range m.Guests {
		moved.Bytes += g.Bytes
	}
	moved.Copied = 2 * time.Second
	switch how {
	case "done", "gave-way":
		moved.End, moved.GaveWay = journal.MoveDone, how == "gave-way"
		w.moved(m)
	case "cancelled":
		moved.End, moved.Cancelled = journal.MoveUndone, true
	case "undone":
		moved.End = journal.MoveUndone
	default: // stopped, or a step failed
		return moved
	}
	w.journalMove(moved.End, id, m, moved.Cancelled)
	return moved
}

func (w *world) settingCommand(d *datadriven.TestData) {
	r := w.remedy
	if r == nil {
		d.Fatalf(w.t, "no setting is being changed")
		return
	}
	w.remedy = nil
	e := control.SettingChanged{What: fmt.Sprintf("%s %s", r.Path, r.Value)}
	switch first(d) {
	case "done":
		if r.Path == plan.NUMABalancingPath {
			e.Former, w.kernel.NUMABalancing = w.kernel.NUMABalancing, r.Value
			w.journalSetting(r, e.Former)
		}
	default:
		e.Err, e.NotBegun = errors.New(strings.TrimSpace(d.Input)), first(d) == "not-begun"
	}
	w.step(e)
}

// journalSetting writes what operate.Fix puts into the journal.
func (w *world) journalSetting(r *plan.Remedy, former string) {
	w.journal = append(w.journal, journal.Entry{
		At: w.now, Kind: journal.EffectSetting.Done(), Effect: journal.EffectSetting, What: r.Path,
		Setting: &journal.SettingChange{
			Path:   r.Path,
			Former: former,
			Value:  r.Value,
			Held:   r.Kind == plan.WriteSetting,
		},
	})
}

func (w *world) pauseCommand(d *datadriven.TestData) {
	var length string
	p := control.Pause{Order: w.order(), Why: strings.TrimSpace(d.Input)}
	if d.MaybeScanArgs(w.t, "for", &length) {
		parsed, err := time.ParseDuration(length)
		w.must(err)
		p.For = parsed
	}
	w.step(p)
}

func (w *world) acceptCommand(d *datadriven.TestData) {
	id := first(d)
	if advice := w.c.Status(w.now).Advice; id == "" && len(advice) > 0 {
		id = advice[0].ID
	}
	w.step(control.Accept{Order: w.order(), Advice: id})
}

func (w *world) cancelCommand(d *datadriven.TestData) {
	id := first(d)
	if moving := w.c.Status(w.now).Moving; id == "" && len(moving) > 0 {
		id = moving[0].ID
	}
	w.step(control.Cancel{Order: w.order(), Job: id})
}

func (w *world) statusCommand(*datadriven.TestData) {
	s := w.c.Status(w.now)
	w.print("status   mode %s, %d plans, moves: %d done, %d failed, %d cancelled; %d repairs",
		s.Mode, s.Totals.Plans, s.Totals.MovesDone, s.Totals.MovesFailed, s.Totals.MovesCancelled, s.Totals.Repairs)
	if s.Held != "" {
		w.print("held     %s", s.Held)
	}
	for _, g := range s.Degraded {
		w.print("degraded %s since %v: %s", g.Guest, g.Since.Sub(w.began), g.Why)
	}
	for _, stay := range s.Blocked {
		w.print("blocked    %s: %s: %s", stay.Guest, stay.Kind, stay.Why)
	}
	for _, a := range s.Advice {
		w.print("advice   %s", a.Move.String())
	}
	for _, m := range s.Moving {
		w.print("moving   %s: %s", m.ID, m.Step)
	}
	for _, r := range s.Competitors {
		w.print("competitor    %s: %s; %s", r.Name, r.What, r.Answer)
	}
	for _, g := range s.Guests {
		if len(g.Drift) > 0 {
			w.print("drift    %s: %s", g.Name, strings.Join(g.Drift, "; "))
		}
	}
}
