package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
)

// Options set the length of a run and the receiver of its progress.
type Options struct {
	Layout
	Window   time.Duration // of which each gets figures of its own
	Windows  int           // that a run has
	Limit    time.Duration // a run that is not done by then has failed
	Progress func(format string, args ...any)
}

// Measure makes one run in a lab of its own. The run's Failed describes a
// failure; an error means that no run can be made at all.
func Measure(ctx context.Context, o Options, m Manager) (Run, error) {
	shape, err := o.shape()
	if err := errors.Join(err, o.Validate()); err != nil {
		return Run{}, err
	}
	run := Run{Manager: m.Name, Began: time.Now().UTC().Truncate(time.Second)}
	limited, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	if err := measure(limited, o, shape, m, &run); err != nil {
		run.Failed = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return run, ctx.Err()
}

func measure(ctx context.Context, o Options, shape lab.Shape, m Manager, run *Run) (err error) {
	h, err := lab.Boot(ctx, lab.Options{Shape: shape, Libvirt: true, Progress: o.Progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Kill()) }()
	s := &session{Options: o, manager: m, host: h}
	if s.scope, err = h.Scope(); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *Run) error{s.start, s.begin, s.watch, s.end} {
		if err := step(ctx, run); err != nil {
			return err
		}
	}
	return nil
}

// session is one run while it lasts.
type session struct {
	Options
	manager Manager
	host    *lab.Host
	scope   *labcounter.Counter
}

// start brings the guests up, until all have filled their memory.
func (s *session) start(ctx context.Context, _ *Run) error {
	if err := s.host.AddGuest(ctx); err != nil {
		return err
	}
	balancing := 0
	if s.manager.balancing {
		balancing = 1
	}
	if _, err := s.sh(ctx, fmt.Sprintf("echo %d > /proc/sys/kernel/numa_balancing || exit; "+
		"%s", balancing, s.manager.before)); err != nil {
		return err
	}
	for i, name := range s.names() {
		create := "cat > /run/$1.xml <<'X'\n" + s.manager.domain(
			s.Layout,
			i,
		) + "\nX\nvirsh -q create /run/$1.xml || exit; set -- $1 $(cat /run/libvirt/qemu/$1.pid)\n" + s.manager.created
		if _, err := s.sh(ctx, create, name); err != nil {
			return err
		}
		if s.manager.atOnce {
			continue
		}
		if err := s.host.AwaitGuest(ctx, name); err != nil {
			return err
		}
	}
	for _, name := range s.names() {
		if err := s.host.AwaitGuest(ctx, name); err != nil {
			return err
		}
	}
	s.Progress("%s: %d guests are ready", s.manager.Name, s.Guests)
	return nil
}

// locations prints a line per guest: its memory by node, and the CPUs on which its vCPUs are.
const locations = `for g; do pid=$(cat /run/libvirt/qemu/$g.pid) || exit
echo "$g:$(grep -h "^anon " /sys/fs/cgroup/machine/qemu-*-$g.libvirt-qemu/memory.numa_stat | awk '{for (i = 2; i <= NF; i++) {split($i, a, "="); printf " %s %.0f MiB", a[1], a[2] / 1048576}}'), vCPUs on CPUs$(
for t in /proc/$pid/task/*; do grep -q KVM $t/comm && awk '{printf " %s", $40}' $t/stat; done)"; done`

// moved runs in the background without end, and records once a window how many
// pages the host's kernel has moved.
const moved = `setsid sh -c 'while :; do awk "/^pgmigrate_success/ {print \$2}" /proc/vmstat >> /lab/files/moved; sleep $0; done' %g >/dev/null 2>&1 &`

// begin removes the limits of a worst-case start, switches distance on and lets
// the guests work.
func (s *session) begin(ctx context.Context, run *Run) error {
	if s.manager.worstStart {
		if _, err := s.sh(ctx, s.release()); err != nil {
			return err
		}
	}
	if _, err := s.sh(ctx, s.manager.ready, s.names()...); err != nil {
		return err
	}
	var err error
	if run.Start, err = s.lines(ctx, locations, s.names()...); err != nil {
		return err
	}
	if err := s.scope.Set(ctx, labcounter.Felt); err != nil {
		return err
	}
	if _, err := s.sh(ctx, fmt.Sprintf(moved, s.Window.Seconds())); err != nil {
		return err
	}
	return s.host.StartWork(ctx, s.names(), s.Window, s.Windows)
}

// watch reads the counter at the end of each window, from outside, and the
// guests' reports for the window.
func (s *session) watch(ctx context.Context, run *Run) error {
	shape := s.host.Shape
	if err := s.scope.Reset(); err != nil {
		return err
	}
	began := time.Now()
	var before Accesses
	for i := range s.Windows {
		select {
		case <-ctx.Done():
			return fmt.Errorf("window %d of %d: %w", i+1, s.Windows, ctx.Err())
		case <-time.After(time.Until(began.Add(time.Duration(i+1) * s.Window))):
		}
		misses, err := s.scope.Read()
		if err != nil {
			return err
		}
		sum := classify(shape, misses)
		run.Windows = append(run.Windows, Window{Accesses: sum.Minus(before)})
		local, _, _ := sum.Minus(before).Shares()
		s.Progress("%s: %v, %.1f %% local, %.0f ns", s.manager.Name, time.Duration(i+1)*s.Window, 100*local,
			sum.Minus(before).MeanNanos())
		before = sum
	}
	for _, name := range s.names() {
		if err := s.fillWork(ctx, run, name); err != nil {
			return err
		}
	}
	return s.fillMoved(run)
}

// tardiness is how long after the end of the last window a guest may report its
// work: it started a moment after the other guests.
const tardiness = 20 * time.Second

func (s *session) fillWork(ctx context.Context, run *Run, name string) error {
	var said []lab.Work
	for end := time.Now().Add(tardiness); ; {
		var err error
		if said, err = s.host.Worked(name); err != nil {
			return err
		}
		if len(said) >= s.Windows {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("VM %s reported %d windows of %d: %w", name, len(said), s.Windows,
				errors.Join(ctx.Err(), errors.New("it has stopped or is too slow")))
		}
		time.Sleep(100 * time.Millisecond)
	}
	var before lab.Work
	for i := range run.Windows {
		w := &run.Windows[i]
		w.Seconds = append(w.Seconds, (said[i].Elapsed - before.Elapsed).Seconds())
		w.Lines = append(w.Lines, said[i].Lines-before.Lines)
		before = said[i]
	}
	return nil
}

func (s *session) fillMoved(run *Run) error {
	text, err := os.ReadFile(filepath.Join(s.host.Share(), "files", "moved"))
	if err != nil {
		return err
	}
	var counts []uint64
	for _, field := range strings.Fields(string(text)) {
		var n uint64
		if _, err := fmt.Sscan(field, &n); err != nil {
			return fmt.Errorf("pages moved: %q: %w", field, err)
		}
		counts = append(counts, n)
	}
	for i := range run.Windows {
		if i+1 < len(counts) {
			run.Windows[i].PagesMoved = counts[i+1] - counts[i]
		}
	}
	return nil
}

// end records where the guests are now, and collects the manager's output.
func (s *session) end(ctx context.Context, run *Run) error {
	if err := s.scope.Set(ctx, labcounter.Off); err != nil {
		return err
	}
	var err error
	if run.End, err = s.lines(ctx, locations, s.names()...); err != nil {
		return err
	}
	run.Notes, err = s.sh(ctx, s.manager.after, s.names()...)
	return err
}

// sh runs a script in the lab and requires status 0.
func (s *session) sh(ctx context.Context, script string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	status, err := s.host.Run(ctx, append([]string{"bash", "-c", script, "bench"}, args...), &out, &errOut)
	if err == nil && status != 0 {
		err = fmt.Errorf("status %d: %s", status, strings.TrimSpace(errOut.String()))
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(script), "\n")
		return "", fmt.Errorf("%s: in the lab: %q: %w", s.manager.Name, first, err)
	}
	return out.String(), nil
}

func (s *session) lines(ctx context.Context, script string, args ...string) ([]string, error) {
	out, err := s.sh(ctx, script, args...)
	return strings.Split(strings.TrimSpace(out), "\n"), err
}
