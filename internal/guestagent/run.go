package guestagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
)

const pressureFile = "/proc/pressure/cpu"

// trigger makes the kernel wake the agent when threads have waited for a vCPU for 10
// of 500 ms, the shortest window that it allows (Documentation/accounting/psi.rst).
const trigger = "some 10000 500000\x00"

const (
	// every is the time between two reports of a guest whose demand does not change.
	every = time.Second
	// mid is the least time between two measurements.
	mid = 250 * time.Millisecond
	// pace is the least time between two reports of demand that changes without a rise.
	pace = 100 * time.Millisecond
	// fast is the least time between two looks while threads run, and without PSI always.
	fast = 20 * time.Millisecond
	// tolerable is how many times longer than a look takes the agent waits for the next one.
	tolerable = 20
	// lately is the number of times of which the cost of work is known.
	lately = 4
	// confirm is the time to the second look after one at which threads wait.
	confirm = 5 * time.Millisecond
	// mostCalm is the number of looks one after the other without any thread, after which looks end until the kernel
	// reports pressure or vCPUs are in use.
	mostCalm = 10
	// reconnect is the time between two attempts to open the channel.
	reconnect = time.Second
	// step is the change of demand, in thousandths of a vCPU, that is worth a report.
	step = 250
)

// Options say how the agent runs.
type Options struct {
	// Channel is a character device, or the Unix socket of the host in a test. If it is a virtio-serial port that the
	// VM does not have, the agent waits for the host on its vsock.
	Channel string
	Log     func(format string, args ...any)
}

// Run carries out grants and reports demand until ctx ends. Then the vCPUs stay as
// they are. It returns an error only if the guest's kernel cannot be read at all.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(filepath.Dir(epochFile), 0o755); err != nil {
		return err
	}
	for _, file := range []string{epochFile, limitsFile} {
		if f, err := os.OpenFile(file, os.O_CREATE, 0o600); err == nil {
			_ = f.Close()
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := arrangeThreads(); err != nil {
		o.Log("the agent has no real-time priority, and answers late in a busy VM: %v", err)
	}
	a, err := newAgent(newLinux(), time.Sleep, o.Log)
	if err != nil {
		return err
	}
	l := &loop{agent: a, options: o, channel: -1, pressure: openPressure()}
	o.Log("means %q; pressure events: %t", a.parker.means, l.pressure >= 0)
	if err := a.measure(time.Now()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		l.turn(time.Now())
	}
	return nil
}

// openPressure returns a file that poll(2) reports when threads wait; -1: no PSI.
func openPressure() int {
	fd, err := unix.Open(pressureFile, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if _, err := unix.Write(fd, []byte(trigger)); err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// loop waits for the host and for pressure.
type loop struct {
	agent    *agent
	options  Options
	channel  int // -1: not open
	vsock    vsock
	pressure int // -1: no PSI
	lines    guest.Lines
	buffer   [4096]byte

	opened   time.Time // last attempt
	measured time.Time
	sent     time.Time
	own      time.Duration // for which the program had run at the end of the last turn
	looking  cost          // of a turn that only looks
	mean     cost          // of a turn that also measures
	calm     int           // looks one after the other at which no thread ran
	quiet    time.Time     // until then what waits is not counted
	late     bool          // a message came instead of the last look
	doubt    int64         // threads that ran or waited at the last look, more than vCPUs, seen once; else 0
	last     guest.Report
	refused  string // why the last attempt to open failed, so that it is logged once
}

// turn waits once, at most until the next measurement, and does what is due.
func (l *loop) turn(now time.Time) {
	if l.channel < 0 && now.Sub(l.opened) >= reconnect {
		l.open(now)
	}
	fds := []unix.PollFd{{Fd: int32(l.channel), Events: unix.POLLIN}, //nolint:gosec // file descriptors are small
		{Fd: int32(l.pressure), Events: unix.POLLPRI}} //nolint:gosec // as above
	timeout := l.timeout(now)
	ready, err := unix.Poll(fds, int(timeout.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		time.Sleep(timeout)
	}
	now = time.Now()
	if fds[1].Revents&unix.POLLPRI != 0 {
		l.calm = 0
	}
	// A message delays a look: threads that wait now may wait for the agent itself. It delays one look at most, since
	// the host repeats messages.
	count := int64(-1)
	silent := ready <= 0 || fds[0].Revents == 0
	looks := l.alert() && !now.Before(l.quiet) && (silent || l.late)
	if looks {
		count = l.look()
	}
	l.late = !silent && !looks
	rise := 1000*count >= l.last.Running+l.last.Waiting+1000
	answered := fds[0].Revents != 0 && l.receive()
	measured := !l.agent.untidy && now.Sub(l.measured) >= max(mid, l.mean.pause())
	if measured {
		l.measured = now
		if err := l.agent.measure(now); err != nil {
			l.options.Log("measuring demand: %v", err)
		}
		if l.agent.last.running >= step {
			l.calm = 0
		}
	}
	l.send(now, count, answered || rise)
	l.price(measured, looks && !answered && !l.sent.Equal(now))
	if l.agent.untidy {
		l.agent.tidy()
		// The kernel's work for a change goes on after it, longer in a slow VM: it is no demand.
		done := time.Now()
		l.quiet = done.Add(max(fast, 2*done.Sub(now)))
		l.doubt = 0
	} else if !l.agent.setApart(now) {
		return
	}
	l.own = l.agent.k.ownTime() // this work is no part of what the next look or measurement costs
}

// price notes what the turn has cost: one that measured, or one that did nothing but look.
func (l *loop) price(measured, looked bool) {
	own := l.agent.k.ownTime()
	switch took := own - l.own; {
	case measured:
		l.mean.add(took)
	case looked:
		l.looking.add(took)
	}
	l.own = own
}

// cost is how long some work of the agent took the last times, the latest first.
type cost []time.Duration

func (c *cost) add(took time.Duration) {
	*c = append(cost{max(0, took)}, (*c)[:min(len(*c), lately-1)]...)
}

// pause is the least time until the work is repeated, half a second at most. Undisturbed, the work then takes at most a
// twentieth of a vCPU, also of a slow one. The least cost counts: a greater one says nothing of the next.
func (c cost) pause() time.Duration {
	if len(c) == 0 {
		return 0
	}
	return min(tolerable*slices.Min(c), every/2)
}

// alert reports whether the agent looks for threads now.
func (l *loop) alert() bool { return l.pressure < 0 || l.calm < mostCalm }

func (l *loop) timeout(now time.Time) time.Duration {
	switch {
	case l.doubt > 0:
		return confirm
	case l.alert():
		return max(fast, l.looking.pause(), l.quiet.Sub(now).Round(time.Millisecond)+time.Millisecond)
	}
	return mid
}

// look returns the number of threads that run or wait, if it is more than the vCPUs in use, and was so at the
// look before: what is there once, the kernel's own work for the most part, is gone a moment later. Else -1.
func (l *loop) look() int64 {
	n, ok := l.agent.meter.runnable()
	if !ok {
		return -1
	}
	if l.calm++; n > 0 {
		l.calm = 0
	}
	before := l.doubt
	l.doubt = 0
	used := int64(l.agent.usedNow())
	if n <= used {
		l.agent.meter.served(n)
		return -1
	}
	if before == 0 {
		l.doubt = n
		return -1
	}
	n = min(n, before)
	if n >= used+manyMore {
		l.agent.meter.rise(n)
		return n
	}
	l.agent.meter.note(n, n)
	if n == used+1 && l.agent.meter.most() < n {
		return -1 // one thread more is often the kernel's: it counts with the next look that finds it
	}
	return n
}

// send sends a report if it is due: at once after a grant or a rise, soon after other
// changes, else every second.
func (l *loop) send(now time.Time, count int64, due bool) {
	if l.channel < 0 {
		return
	}
	r := l.agent.draft(count)
	changed := r.Used != l.last.Used || r.Epoch != l.last.Epoch || r.Means != l.last.Means
	moved := now.Sub(l.sent) >= pace && (far(r.Running, l.last.Running) || far(r.Waiting, l.last.Waiting) ||
		far(r.Brief, l.last.Brief))
	if !due && !changed && !moved && now.Sub(l.sent) < every {
		return
	}
	r, err := l.agent.report(count)
	if err != nil {
		l.options.Log("the state of the vCPUs is unknown: %v", err)
		return
	}
	line, err := guest.Encode(&r)
	if err != nil {
		l.options.Log("a report: %v", err)
		return
	}
	n, err := unix.Write(l.channel, line)
	switch {
	case errors.Is(err, unix.EAGAIN): // the host does not read: the next report holds all
	case err != nil || n < len(line):
		l.close(err)
	default:
		l.last = r
	}
	l.sent = now
}

func far(a, b int64) bool { return a-b >= step || b-a >= step }

// receive carries out the newest of the grants that have arrived, and reports whether
// there was one.
func (l *loop) receive() bool {
	var newest guest.Grant
	for {
		n, err := unix.Read(l.channel, l.buffer[:])
		if n > 0 {
			l.lines.Add(l.buffer[:n], func(line []byte) {
				g, err := guest.DecodeGrant(line)
				if err != nil {
					l.options.Log("a message of the host is not carried out: %v", err)
				} else if g.Epoch >= newest.Epoch {
					newest = g
				}
			})
			continue
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EAGAIN) {
			l.close(err) // 0 bytes: the host has closed its side
		}
		break
	}
	if newest.Epoch > 0 {
		l.agent.grant(newest)
	}
	return newest.Epoch > 0
}
