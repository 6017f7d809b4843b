package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Threads is what Linux does with the threads of VMs.
type Threads interface {
	// ConfineVCPU restricts a vCPU's thread, and its cgroup, to CPUs.
	ConfineVCPU(pid, tid int, vcpu words.VCPUID, cpus topology.CPUSet) error
	// RunTimeOf returns how long a thread has run.
	RunTimeOf(pid, tid int) (time.Duration, error)
	// ConnectAgent returns a socket that is connected to the agent in the VM of a process, in non-blocking mode: by the
	// virtio-serial port of this name, or by this port of the VM's vsock if the VM has no such virtio-serial port.
	ConnectAgent(pid int, port string, vsock uint32) (*os.File, error)
}

// Runner hands CPUs over between the guests of one host, for its daemon.
type Runner struct {
	// Rules are the operator's, with the CPUs.
	Rules   handoff.Rules
	Threads Threads
	// File holds the record. It belongs into a folder that a boot of the host empties.
	File string
	Log  func(format string, args ...any)
	// Claims returns what is reserved for VMs that are being created; nil: nothing is.
	Claims func() ([]inventory.Claim, error)

	once    sync.Once
	updates chan update
	tally   tally
}

// update is what an observation says.
type update struct {
	topology *topology.Topology
	guests   []inventory.Guest
}

func (r *Runner) channel() chan update {
	r.once.Do(func() { r.updates = make(chan update, 1) })
	return r.updates
}

// Follow takes the guests of an observation; the latest counts.
func (r *Runner) Follow(guests []inventory.Guest, t *topology.Topology) {
	select {
	case <-r.channel():
	default:
	}
	r.channel() <- update{t, guests}
}

// Run hands CPUs over until ctx ends; then all guests keep what they have.
func (r *Runner) Run(ctx context.Context) error {
	var first update
	select {
	case <-ctx.Done():
		return nil
	case first = <-r.channel():
	}
	record, err := ReadRecord(r.File)
	if err != nil {
		return err
	}
	l := &loop{Runner: r, guests: map[string]*connection{}, messages: make(chan message),
		starting: map[string]time.Time{}}
	defer l.workers.Wait()
	defer l.close()
	l.hands = New(Options{Topology: first.topology, Rules: r.Rules, Kernel: l, Save: r.save, Send: l.send, Log: r.Log},
		record)
	r.tally.record(record, time.Now())
	l.follow(ctx, first)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-r.channel():
			l.follow(ctx, u)
		case m := <-l.messages:
			if err := l.hands.Report(m.guest, m.line, time.Now()); err != nil {
				l.complain(err)
			}
		case <-timer.C:
		}
		l.reserve(time.Now())
		next, err := l.hands.Step(time.Now())
		r.tally.guests(l.hands)
		if err != nil {
			l.complain(err)
		}
		timer.Reset(time.Until(next))
	}
}

// ReadRecord reads the record of granted CPUs. Without the file, the zero record: what
// guests run on counts as theirs once they are granted it.
func ReadRecord(file string) (Record, error) {
	var record Record
	if err := readRecord(file, &record); err != nil {
		return record, fmt.Errorf("the record of granted CPUs: %w; stop the mirrored VMs, remove %s, and start again",
			err, file)
	}
	return record, nil
}

// save replaces the file: a reader, after kill -9 too, finds the old or the new
// record. A boot of the host ends all guests, so nothing need reach a disk.
func (r *Runner) save(record Record) error {
	if err := writeRecord(r.File, record); err != nil {
		return err
	}
	r.tally.record(record, time.Now())
	return nil
}

// readRecord reads the JSON of a record; without the file, it leaves the record as it is.
func readRecord(file string, record any) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, record)
}

// writeRecord replaces a file by the JSON of a record.
func writeRecord(file string, record any) error {
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// loop is what the goroutine of Run owns.
type loop struct {
	*Runner
	hands    *Hands
	guests   map[string]*connection
	messages chan message
	workers  sync.WaitGroup
	said     string
	// starting has the time when a claim of a VM that has not been observed was last read.
	starting map[string]time.Time
	// threadless are the guests of the latest observation that it shows without their vCPUs' threads: they start.
	threadless map[string]bool
}

// message is a line from a guest.
type message struct {
	guest string
	line  []byte
}

// complain logs an error once, until another one occurs.
func (l *loop) complain(err error) {
	if text := err.Error(); text != l.said {
		l.said = text
		l.Log("%s", text)
	}
}

// follow takes an observation: guests come, go and are paused.
func (l *loop) follow(ctx context.Context, u update) {
	l.hands.Topology = u.topology
	seen := map[string]bool{}
	l.threadless = map[string]bool{}
	for i := range u.guests {
		g := &u.guests[i]
		member, ok := handoff.GuestOf(g.Name, g.Placement)
		if !ok || g.PID == 0 {
			continue
		}
		tids := vcpuThreads(g)
		if c := l.guests[g.Name]; c != nil && c.pid != g.PID {
			l.leave(g.Name) // it has been started again
		}
		c := l.guests[g.Name]
		if c == nil && len(tids) < len(member.Mirror) { // QEMU has not made them all, or they were not looked for yet
			l.hands.Starting(member, g.Placement.Handoff.First)
			l.starting[g.Name], l.threadless[g.Name] = time.Now(), true
			continue
		}
		seen[g.Name] = true
		if c == nil {
			ctx, stop := context.WithCancel(ctx)
			c = &connection{name: g.Name, pid: g.PID, stop: stop, threads: l.Threads, log: l.Log, messages: l.messages}
			l.guests[g.Name] = c
			l.workers.Go(func() { c.run(ctx) })
		}
		if len(tids) >= len(member.Mirror) { // else some could not be read now; those of a process do not change
			c.tids = tids
		}
		l.hands.Guest(member, g.Placement.Handoff.First, g.State == "paused")
	}
	for name := range l.guests {
		if !seen[name] {
			l.leave(name)
		}
	}
}

// vcpuThreads returns the threads of a guest's vCPUs.
func vcpuThreads(g *inventory.Guest) map[words.VCPUID]int {
	tids := map[words.VCPUID]int{}
	for _, t := range g.Seen.Threads {
		if t.VCPU != nil {
			tids[*t.VCPU] = t.TID
		}
	}
	return tids
}

// unseen is how long the CPUs of a claim stay reserved after it has been released,
// until an observation shows its VM.
const unseen = 5 * time.Second

// reserve reserves CPUs for the VMs that are being created.
func (l *loop) reserve(now time.Time) {
	if l.Claims == nil {
		return
	}
	claims, err := l.Claims() // with an error, those that could be read
	if err != nil {
		l.complain(err)
	}
	for i := range claims {
		c := &claims[i]
		if member, ok := handoff.GuestOf(c.Name, &c.Placement); ok && l.guests[c.Name] == nil {
			l.hands.Starting(member, c.Placement.Handoff.First)
			l.starting[c.Name] = now
		}
	}
	for name, at := range l.starting {
		if l.guests[name] != nil {
			delete(l.starting, name)
		} else if now.Sub(at) > unseen && !l.threadless[name] {
			delete(l.starting, name)
			l.hands.Gone(name)
		}
	}
}

func (l *loop) leave(name string) {
	l.guests[name].stop()
	delete(l.guests, name)
	l.hands.Gone(name)
}

func (l *loop) close() {
	for _, c := range l.guests {
		c.stop()
	}
}

var errNoThread = errors.New("its thread has not been observed yet")

// Confine is part of Kernel.
func (l *loop) Confine(name string, v words.VCPUID, cpus topology.CPUSet) error {
	c := l.guests[name]
	if c == nil || c.tids[v] == 0 {
		return errNoThread
	}
	return l.Threads.ConfineVCPU(c.pid, c.tids[v], v, cpus)
}

// RunTime is part of Kernel.
func (l *loop) RunTime(name string, v words.VCPUID) (time.Duration, error) {
	c := l.guests[name]
	if c == nil || c.tids[v] == 0 {
		return 0, errNoThread
	}
	return l.Threads.RunTimeOf(c.pid, c.tids[v])
}

func (l *loop) send(name string, text []byte) {
	if c := l.guests[name]; c != nil {
		c.send(text)
	}
}
