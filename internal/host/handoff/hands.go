package handoff

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/internal/decide/handoff"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Kernel is what the host's kernel does with vCPUs.
type Kernel interface {
	// Confine lets a vCPU run on these CPUs only; it returns when that is so.
	Confine(guest string, vcpu words.VCPUID, cpus topology.CPUSet) error
	// RunTime returns how long a vCPU has run since it was made.
	RunTime(guest string, vcpu words.VCPUID) (time.Duration, error)
}

// Record is what survives this program: the grants, and the last epoch of each guest.
// Commands show Guests; nothing depends on them.
type Record struct {
	Grants []handoff.Grant          `json:"grants"`
	Epochs map[string]handoff.Epoch `json:"epochs"`
	Guests map[string]State         `json:"guests,omitempty"`
}

// State is what an operator sees of a guest.
type State struct {
	// Means is how the agent frees vCPUs; empty: no agent has reported.
	Means guest.Means `json:"means,omitempty"`
	// Silent says that the agent has sent nothing for three seconds.
	Silent bool `json:"silent,omitempty"`
	// Taken counts the CPUs that the guest has been granted since it was first seen.
	Taken int `json:"taken,omitempty"`
	// Misbehaved counts the vCPUs that ran after the guest had released them, and were
	// stopped; the last one at MisbehavedAt.
	Misbehaved   int       `json:"misbehaved,omitempty"`
	MisbehavedAt time.Time `json:"misbehaved_at,omitzero"`
}

// Options are the parts that Hands works with. All must be set.
type Options struct {
	Topology *topology.Topology
	Rules    handoff.Rules
	Kernel   Kernel
	// Save stores the record; a later start gets it even after kill -9.
	Save func(Record) error
	// Send sends a message to a guest's agent. It may be lost.
	Send func(guest string, message []byte)
	// Log reports what an operator should know.
	Log func(format string, args ...any)
}

const (
	// silence is how long an agent may send nothing: it reports every second.
	silence = 3 * time.Second
	// patience is how long a guest may go on using a CPU that no minimum needs, once it has
	// carried out the grant without it; slowPatience, how long it may take to do so, or its agent
	// to start again and do so. A guest whose vCPUs
	// are slow, as while it boots, releases late: to ask it again would only take longer.
	patience     = time.Second
	slowPatience = 5 * time.Second
	// resend is the time after which a grant that a report does not show is sent again.
	resend = 100 * time.Millisecond
	// placing is how long libvirt may take to put the threads of a VM that starts into their cgroups. Until then they
	// may not be allowed on their CPUs.
	placing = 5 * time.Second
	// look is the least time over which a vCPU is seen idle or not.
	look = 5 * time.Millisecond
	// idleBelow is the share of a look in which an idle vCPU may run, for the timers
	// of its kernel.
	idleBelow = 0.25
)

// member is a guest with the state of its agent.
type member struct {
	handoff.Guest

	Paused bool
	// Means is how the agent frees vCPUs; empty: no agent has reported.
	Means guest.Means

	// starting says that the guest is being created: it has no threads yet.
	starting bool
	report   guest.Report
	heard    time.Time
	began    time.Time // when the agent's first report came, or the first one since it has started again
	sent     time.Time
	demand   handoff.Demand
	confine  map[words.VCPUID]topology.CPUSet // what the kernel was last ordered
	first    time.Time                        // when it was ordered something first
}

// watch is a vCPU that its guest has released, until it has been seen idle.
type watch struct {
	since, last     time.Time
	ran, ranAtFirst time.Duration
}

// Hands carries out hand-overs. It has no clock and no goroutine: its caller passes
// on guests, messages and time, from one goroutine.
type Hands struct {
	Options
	record  Record
	members map[string]*member
	memory  handoff.Memory
	watches map[topology.CPUID]watch
	unsaved bool
	now     time.Time // of this Step
}

// New continues from a record; the zero record is the first start.
func New(o Options, r Record) *Hands {
	h := &Hands{Options: o, record: r, members: map[string]*member{}, watches: map[topology.CPUID]watch{}}
	if h.record.Epochs == nil {
		h.record.Epochs = map[string]handoff.Epoch{}
	}
	h.record.Grants, h.record.Guests = slices.Clone(r.Grants), maps.Clone(r.Guests)
	if h.record.Guests == nil {
		h.record.Guests = map[string]State{}
	}
	return h
}

// note changes what an operator sees of a guest, and stores it with the next grants.
func (h *Hands) note(name string, change func(*State)) {
	s := h.record.Guests[name]
	before := s
	if change(&s); s != before {
		h.record.Guests[name] = s
		h.unsaved = true
	}
}

// Guest adds a guest, or changes what is known of it. A guest of which there is no
// record has the CPUs on which it was started, as far as no other guest has them.
func (h *Hands) Guest(g handoff.Guest, first topology.CPUSet, paused bool) {
	m := h.members[g.Name]
	if m == nil {
		m = &member{confine: map[words.VCPUID]topology.CPUSet{}}
		h.members[g.Name] = m
	}
	m.Guest, m.Paused, m.starting = g, paused, false
	if h.open(m).IsEmpty() {
		h.begin(m, first)
	}
}

// Starting reserves the CPUs with which a guest starts, before it does: other guests
// release them. The record shows when they are its own.
func (h *Hands) Starting(g handoff.Guest, first topology.CPUSet) {
	if m := h.members[g.Name]; m != nil && !m.starting {
		return
	}
	g.Mirror = slices.DeleteFunc(slices.Clone(g.Mirror), func(cpu topology.CPUID) bool { return !first.Contains(cpu) })
	g.Min = len(g.Mirror)
	if g.Min == 0 {
		return
	}
	h.Guest(g, first, false)
	h.members[g.Name].starting = true
}

// begin grants a guest the CPUs with which it starts, as far as no other guest has them.
func (h *Hands) begin(m *member, first topology.CPUSet) {
	for cpu := range first.All() {
		if _, mirrored := m.VCPUOn(cpu); mirrored && h.find(cpu) < 0 {
			h.advance(m)
			h.record.Grants = append(h.record.Grants,
				handoff.Grant{CPU: cpu, Guest: m.Name, Epoch: h.record.Epochs[m.Name]})
		}
	}
}

// Gone removes a guest that has stopped. Its CPUs are free with the next Step.
func (h *Hands) Gone(name string) {
	delete(h.members, name)
	delete(h.record.Epochs, name)
	delete(h.record.Guests, name)
}

// Record returns the grants as they are now.
func (h *Hands) Record() Record { return h.record }

// Report takes a message of a guest's agent. The error says what is wrong with it;
// nothing has changed then.
func (h *Hands) Report(name string, line []byte, now time.Time) error {
	m := h.members[name]
	if m == nil {
		return fmt.Errorf("a report of VM %s, which hands over no CPUs", name)
	}
	r, err := guest.DecodeReport(line)
	if err != nil {
		return fmt.Errorf("a report of VM %s: %w", name, err)
	}
	if overtaken(&r, &m.report) {
		return nil // a later one has arrived
	}
	if r.Boot != m.report.Boot {
		m.sent = time.Time{} // another kernel: it uses all vCPUs
	}
	if r.Boot != m.report.Boot || r.Seq < m.report.Seq {
		m.began = now
	}
	// A VM that sends a report runs. The observation that showed it paused, as a VM is that starts, may be old.
	m.report, m.heard, m.Means, m.Paused = r, now, r.Means, false
	h.note(name, func(s *State) { s.Means = r.Means })
	m.demand = handoff.Demand{
		Guest: name, At: now, Running: float64(r.Running) / 1000, Waiting: float64(r.Waiting) / 1000,
		Brief: float64(r.Brief) / 1000,
	}
	if epoch := handoff.Epoch(r.Epoch); epoch > h.record.Epochs[name] && epoch < guest.MaxEpoch {
		h.record.Epochs[name] = epoch // a record was lost: the next grant must be newer than any before
		h.advance(m)
	}
	return nil
}

// reordered is how far apart reports can overtake each other. A smaller number than
// that means that the agent has started again.
const reordered = 8

// overtaken reports whether a report was sent before the last one that arrived.
func overtaken(r, last *guest.Report) bool {
	return r.Boot == last.Boot && r.Seq < last.Seq && last.Seq-r.Seq < reordered
}

// Step does what can be done now, and returns when to call it next even if nothing
// happens before.
func (h *Hands) Step(now time.Time) (next time.Time, err error) {
	h.now = now
	h.settle(now)
	err = h.enforce()
	d, memory, decided := handoff.Decide(h.input(now))
	if decided != nil {
		return now.Add(time.Second), errors.Join(err, fmt.Errorf("deciding on hand-overs: %w", decided))
	}
	h.memory = memory
	for _, r := range d.Releases {
		h.release(r, now)
	}
	for _, t := range d.Takes {
		h.take(t, now)
	}
	err = h.enforce() // it repeats what failed before, so these are all errors
	h.sendDue(now)
	next = now.Add(resend)
	if len(h.watches) > 0 {
		next = now.Add(look)
	}
	if !d.Again.IsZero() && d.Again.Before(next) {
		next = d.Again
	}
	return next, err
}

func (h *Hands) input(now time.Time) handoff.Input {
	in := handoff.Input{Now: now, Topology: h.Topology, Rules: h.Rules, Grants: slices.Clone(h.record.Grants),
		Memory: h.memory}
	for _, name := range h.names() {
		m := h.members[name]
		g := m.Guest
		silent := now.Sub(m.heard) > silence
		h.note(name, func(s *State) { s.Silent = silent && s.Means != "" })
		g.Frozen = m.Paused || silent || m.Means == guest.None
		in.Guests = append(in.Guests, g)
		if m.demand.Guest != "" {
			in.Demands = append(in.Demands, m.demand)
		}
	}
	return in
}

func (h *Hands) names() []string {
	var names []string
	for name := range h.members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (h *Hands) find(cpu topology.CPUID) int {
	return slices.IndexFunc(h.record.Grants, func(g handoff.Grant) bool { return g.CPU == cpu })
}

// advance gives a guest's grant a new epoch, and sends it with this Step.
func (h *Hands) advance(m *member) {
	if h.record.Epochs[m.Name] < guest.MaxEpoch-1 {
		h.record.Epochs[m.Name]++
	}
	m.sent, h.unsaved = time.Time{}, true
}

func (h *Hands) take(t handoff.Take, now time.Time) {
	m := h.members[t.Guest]
	if m == nil || h.find(t.CPU) >= 0 {
		return
	}
	h.advance(m)
	h.record.Grants = append(h.record.Grants,
		handoff.Grant{CPU: t.CPU, Guest: t.Guest, Epoch: h.record.Epochs[t.Guest], Since: now})
	h.note(t.Guest, func(s *State) { s.Taken++ })
}

func (h *Hands) release(r handoff.Release, now time.Time) {
	i := h.find(r.CPU)
	if i < 0 || h.record.Grants[i].Guest != r.Guest {
		return
	}
	m := h.members[r.Guest]
	if m == nil { // the guest has stopped: none of its threads exists
		h.free(i)
		return
	}
	g := &h.record.Grants[i]
	if !g.Leaving {
		g.Leaving, g.Since, g.Stuck = true, now, false
		h.advance(m)
		g.Epoch = h.record.Epochs[r.Guest]
	}
	if r.Force {
		h.Log("VM %s does not release vCPU %d: it is confined to the VM's other CPUs, and CPU %d goes to %s", r.Guest,
			r.VCPU, r.CPU, r.For)
		h.confineAndFree(m, i)
	}
}

func (h *Hands) free(i int) {
	delete(h.watches, h.record.Grants[i].CPU)
	h.record.Grants = slices.Delete(h.record.Grants, i, i+1)
	h.unsaved = true
}

// confineAndFree takes a CPU away from all vCPUs of its guest, and then it is free. If
// the kernel does not do so, the CPU stays with the guest.
func (h *Hands) confineAndFree(m *member, i int) {
	cpu := h.record.Grants[i].CPU
	rest := h.open(m).Minus(topology.SetOf(cpu))
	if rest.IsEmpty() {
		return
	}
	for v := range m.Mirror {
		id := words.VCPUID(v)
		if err := h.confine(m, id, h.room(m, id, rest)); err != nil {
			h.Log("VM %s keeps CPU %d: %v", m.Name, cpu, err)
			return
		}
	}
	h.free(i)
}

// room returns where a vCPU may run of the CPUs that are open to its guest: on its own CPU, else on all of them. If the
// guest says that it does not use the vCPU, the first CPU suffices. The guest has that one always, so that a hand-over
// need not order the kernel for all vCPUs without a CPU.
func (h *Hands) room(m *member, v words.VCPUID, open topology.CPUSet) topology.CPUSet {
	if own := m.Mirror[v]; open.Contains(own) {
		return topology.SetOf(own)
	}
	answers := !m.Paused && h.now.Sub(m.heard) <= silence
	if anchor := m.Mirror[0]; answers && open.Contains(anchor) && !m.report.Used.Has(int(v)) {
		return topology.SetOf(anchor)
	}
	return open
}

// open returns the CPUs that a guest's vCPUs may use.
func (h *Hands) open(m *member) topology.CPUSet {
	var cpus topology.CPUSet
	for _, g := range h.record.Grants {
		if g.Guest == m.Name {
			cpus = cpus.With(g.CPU)
		}
	}
	return cpus
}

// confine orders the kernel, unless that is its last order.
func (h *Hands) confine(m *member, v words.VCPUID, cpus topology.CPUSet) error {
	if last, ok := m.confine[v]; ok && last.Equal(cpus) {
		return nil
	}
	delete(m.confine, v)
	if err := h.Kernel.Confine(m.Name, v, cpus); err != nil {
		return err
	}
	m.confine[v] = cpus
	return nil
}

// enforce saves the record, and lets each vCPU run where room says of what the record grants its guest. Nothing is
// opened that is not saved.
func (h *Hands) enforce() error {
	if h.unsaved {
		if err := h.Save(h.record); err != nil {
			return fmt.Errorf("the record of grants cannot be stored, so no CPU changes hands: %w", err)
		}
		h.unsaved = false
	}
	var errs []error
	for _, name := range h.names() {
		m := h.members[name]
		open := h.open(m)
		if m.starting || open.IsEmpty() {
			continue // without threads; or others have the CPUs on which it was started: its minimum comes first
		}
		if m.first.IsZero() {
			m.first = h.now
		}
		for v := range m.Mirror {
			err := h.confine(m, words.VCPUID(v), h.room(m, words.VCPUID(v), open))
			if err != nil && h.now.Sub(m.first) > placing { // else it is tried again with the next Step
				errs = append(errs, fmt.Errorf("VM %s, vCPU %d: %w", name, v, err))
			}
		}
	}
	return errors.Join(errs...)
}

// settle frees the CPUs whose release is complete, and gives up on those that a guest
// does not release.
func (h *Hands) settle(now time.Time) {
	for _, g := range slices.Clone(h.record.Grants) {
		m := h.members[g.Guest]
		if m == nil || !g.Leaving && !g.Stuck {
			continue
		}
		v, ok := m.VCPUOn(g.CPU)
		if !ok {
			continue
		}
		answers := !m.Paused && now.Sub(m.heard) <= silence
		switch i := h.find(g.CPU); {
		case g.Stuck:
			h.record.Grants[i].Stuck = !answers || now.Sub(g.Since) < 10*patience
		case m.report.Epoch >= uint64(g.Epoch) && !m.report.Used.Has(int(v)):
			h.acknowledged(m, i, v, now)
		case now.Sub(g.Since) > slowPatience, m.report.Epoch >= uint64(g.Epoch) && m.heard.Sub(g.Since) > patience &&
			m.heard.Sub(m.began) > patience:
			h.Log("VM %s has not released vCPU %d within %v: it keeps CPU %d", g.Guest, v, now.Sub(g.Since), g.CPU)
			h.record.Grants[i].Leaving, h.record.Grants[i].Stuck, h.record.Grants[i].Since = false, true, now
			delete(h.watches, g.CPU)
			h.advance(m)
		}
	}
}

// acknowledged frees a CPU when its vCPU has been seen idle, or after a period in
// which it runs all the same: then it is stopped.
func (h *Hands) acknowledged(m *member, i int, v words.VCPUID, now time.Time) {
	g := h.record.Grants[i]
	ran, err := h.Kernel.RunTime(m.Name, v)
	if err != nil {
		h.Log("VM %s: the run time of vCPU %d is unknown, so it keeps CPU %d: %v", m.Name, v, g.CPU, err)
		return
	}
	w, seen := h.watches[g.CPU]
	elapsed := now.Sub(w.last)
	switch {
	case !seen:
		h.watches[g.CPU] = watch{now, now, ran, ran}
	case elapsed < look:
	case float64(ran-w.ran) < idleBelow*float64(elapsed):
		h.confineAndFree(m, i)
	case now.Sub(w.since) < h.period():
		h.watches[g.CPU] = watch{w.since, now, ran, w.ranAtFirst}
	default:
		h.note(m.Name, func(s *State) { s.Misbehaved, s.MisbehavedAt = s.Misbehaved+1, now.UTC() })
		h.Log("VM %s misbehaves: vCPU %d ran for %v of %v after its release; it is confined to the VM's other CPUs",
			m.Name, v, ran-w.ranAtFirst, now.Sub(w.since))
		h.confineAndFree(m, i)
	}
}

func (h *Hands) period() time.Duration {
	if h.Rules.Period > 0 {
		return h.Rules.Period
	}
	return defaultPeriod
}

// defaultPeriod is that of handoff.Rules.
const defaultPeriod = 50 * time.Millisecond

// sendDue sends grants that are new, or that the last report does not show.
func (h *Hands) sendDue(now time.Time) {
	if h.unsaved {
		return
	}
	for _, name := range h.names() {
		m := h.members[name]
		if now.Sub(m.heard) > silence {
			continue // messages would only fill the port; a report asks for the grant
		}
		vcpus := guest.Of()
		for _, g := range h.record.Grants {
			if v, ok := m.VCPUOn(g.CPU); ok && g.Guest == name && !g.Leaving {
				vcpus.Add(int(v))
			}
		}
		epoch := h.record.Epochs[name]
		shown := m.report.Epoch == uint64(epoch) && m.report.Used == vcpus
		if epoch == 0 || !vcpus.Has(0) || now.Sub(m.sent) < resend || shown && !m.sent.IsZero() {
			continue
		}
		line, err := guest.Encode(&guest.Grant{V: guest.Version, Epoch: uint64(epoch), VCPUs: vcpus})
		if err != nil {
			h.Log("a grant for VM %s: %v", name, err)
			continue
		}
		h.Send(name, line)
		m.sent = now
	}
}
