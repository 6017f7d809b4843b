package xenbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/cputime"
)

// Options say what to measure.
type Options struct {
	Guests   []int // numbers of VMs
	Rounds   int
	Seconds  int // for which each number of VMs works, by their own clocks
	Build    string
	Progress func(format string, args ...any)
}

// MostGuests is how many VMs a lab holds in addition to dom0, with a CPU for each vCPU.
const MostGuests = 8

const (
	delayScale = 3 // as in package peers
	settleTime = 5 * time.Minute
)

// size is what each of some VMs has: as many vCPUs as a node has CPUs, or one if the host has no CPUs for that, and so
// much memory, in MiB, that two fit on the node with the greatest part of dom0. Without a CPU for each vCPU the figures
// would show how Xen divides CPUs, not where the memory is.
func size(s lab.Shape, guests int) (vcpus, memory int) {
	cpus := 0
	for _, n := range s.Nodes {
		cpus += n.CPUs
	}
	if 2*guests <= cpus {
		return 2, 192
	}
	return 1, 128
}

// Validate returns an error unless the options can be measured.
func (o Options) Validate() error {
	for _, n := range o.Guests {
		if n < 1 || n > MostGuests {
			return fmt.Errorf("%d VMs: allowed are 1 to %d", n, MostGuests)
		}
	}
	if len(o.Guests) == 0 || o.Rounds < 1 || o.Seconds < 2 {
		return fmt.Errorf("%d numbers of VMs, %d rounds, %d seconds: allowed are 1 or more, and 2 seconds or more",
			len(o.Guests), o.Rounds, o.Seconds)
	}
	return nil
}

// Shape is the host that is measured.
func Shape() (lab.Shape, error) {
	s, err := lab.FindShape("square4")
	s.DelayScale, s.DelayLocal = delayScale, true
	return s, err
}

// Measure boots a lab and measures all ways with each number of VMs, in turn.
func Measure(ctx context.Context, o Options) (r Results, err error) {
	if err := o.Validate(); err != nil {
		return r, err
	}
	shape, err := Shape()
	if err != nil {
		return r, err
	}
	clock := cputime.Start()
	h, err := lab.Boot(ctx, lab.Options{Shape: shape, Hypervisor: lab.Xen, Progress: o.Progress})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, h.Kill()) }()
	if err := h.AddGuest(ctx); err != nil {
		return r, err
	}
	s := session{Options: o, host: h}
	if s.scope, err = h.Scope(); err != nil {
		return r, err
	}
	r.Build, r.Began = o.Build, time.Now().UTC().Truncate(time.Second)
	for round := range o.Rounds {
		for _, n := range o.Guests {
			for _, way := range rotated(round) {
				run, err := s.run(ctx, way, n)
				if err != nil {
					return r, fmt.Errorf("%s with %d VMs: %w", way.Name, n, err)
				}
				run.Round = round + 1
				r.Runs = append(r.Runs, run)
				o.Progress("%d VMs, %s: %.2f M lines/s, %.1f %% of accesses local", n, way.Name, run.Work/1e6,
					100*run.Local)
			}
		}
	}
	r.Others = clock.Others()
	return r, nil
}

// rotated returns the ways, in each round beginning with another one.
func rotated(round int) []Way {
	all := Ways()
	at := round % len(all)
	return append(all[at:len(all):len(all)], all[:at]...)
}

// session is a lab in which runs follow each other.
type session struct {
	Options
	host  *lab.Host
	scope *labcounter.Counter
	made  int // VMs so far: their names differ, as do the files of their consoles
}

// run creates VMs in one way, lets them work, and ends them.
func (s *session) run(ctx context.Context, way Way, n int) (r Run, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime+time.Duration(10*s.Seconds)*time.Second)
	defer cancel()
	r = Run{Way: way.Name, Guests: n}
	names := make([]string, n)
	for vm := range names {
		s.made++
		names[vm] = fmt.Sprintf("g%d", s.made)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
		defer cancel()
		err = errors.Join(err, s.scope.Set(clean, labcounter.Off),
			s.sh(clean, `for g; do xl destroy $g || exit; done; xenstore-rm /tool/numavisor/guest 2>/dev/null; true`,
				names...))
	}()
	for vm, name := range names {
		if err := s.create(ctx, way, vm, n, name); err != nil {
			return r, err
		}
	}
	for _, name := range names {
		if err := s.host.AwaitGuest(ctx, name); err != nil {
			return r, err
		}
	}
	for vm, name := range names {
		if cpus := way.pin(s.host.Shape, vm); cpus != "" {
			if err := s.sh(ctx, "xl vcpu-pin $1 all $2 $2", name, cpus); err != nil {
				return r, err
			}
		}
	}
	return r, s.work(ctx, &r, names)
}

// create creates one of n VMs. Its memory is filled while it boots.
func (s *session) create(ctx context.Context, way Way, vm, n int, name string) error {
	vcpus, memory := size(s.host.Shape, n)
	text := fmt.Sprintf("name = %q\ntype = \"pvh\"\nkernel = %q\nramdisk = %q\nextra = %q\nmemory = %d\nvcpus = %d\n%s",
		name, lab.GuestKernel, lab.GuestInitrd,
		strings.Replace(lab.GuestCommandLine, "ttyS0", "hvc0", 1), memory, vcpus,
		way.settings(s.host.Shape, vm))
	return s.sh(ctx, `printf %s "$2" > /run/$1.cfg && set -- /run/$1.cfg && `+way.create, name, text)
}

// work lets the VMs work, and counts what they do and whose memory they use from their first report on.
func (s *session) work(ctx context.Context, r *Run, names []string) error {
	if err := s.scope.Set(ctx, labcounter.Felt); err != nil {
		return err
	}
	const every = time.Second
	if err := s.host.StartWork(ctx, names, every, s.Seconds+1); err != nil {
		return err
	}
	if err := s.until(ctx, names, 1); err != nil {
		return err
	}
	if err := s.scope.Reset(); err != nil {
		return err
	}
	if err := s.until(ctx, names, s.Seconds); err != nil {
		return err
	}
	misses, err := s.scope.Read()
	if err != nil {
		return err
	}
	r.Local = localShare(s.host.Shape, misses)
	for _, name := range names {
		reports, err := s.host.Worked(name)
		if err != nil {
			return err
		}
		r.Work += rate(reports)
	}
	return nil
}

// until waits until each VM has made this number of reports.
func (s *session) until(ctx context.Context, names []string, reports int) error {
	for _, name := range names {
		for {
			done, err := s.host.Worked(name)
			if err != nil {
				return err
			}
			if len(done) >= reports {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("VM %s made %d of %d reports: %w", name, len(done), reports, ctx.Err())
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// sh runs a script in dom0.
func (s *session) sh(ctx context.Context, script string, args ...string) error {
	var out bytes.Buffer
	status, err := s.host.Run(ctx, append([]string{"sh", "-c", script, "sh"}, args...), &out, &out)
	if err == nil && status != 0 {
		err = fmt.Errorf("status %d: %s", status, strings.TrimSpace(out.String()))
	}
	if err != nil {
		return fmt.Errorf("in dom0: %w", err)
	}
	return nil
}

// rate is the work of a VM between its first and its last report, in lines a second.
func rate(reports []lab.Work) float64 {
	first, last := reports[0], reports[len(reports)-1]
	took := (last.Elapsed - first.Elapsed).Seconds()
	if took <= 0 {
		return 0
	}
	return float64(last.Lines-first.Lines) / took
}

// localShare is the share of the misses that went to the node of the CPU.
func localShare(s lab.Shape, m labcounter.Misses) float64 {
	var local, all uint64
	cpu := 0
	for node, n := range s.Nodes {
		for range n.CPUs {
			if cpu >= len(m.CPUs) {
				break
			}
			for i, misses := range m.CPUs[cpu] {
				if int(m.Nodes[i]) == node {
					local += misses
				}
				all += misses
			}
			cpu++
		}
	}
	if all == 0 {
		return 0
	}
	return float64(local) / float64(all)
}
