package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/cputime"
)

// Options set the length of a run and the receiver of its progress.
type Options struct {
	Window   time.Duration // of which each gets figures of its own
	Limit    time.Duration // a run that is not done by then has failed
	Build    string        // version of Numavisor, for the record
	Progress func(format string, args ...any)
}

// windows is how many windows a run of this layout has.
func (o Options) windows(l Layout) int { return int(time.Duration(l.Seconds) * time.Second / o.Window) }

// Measure makes one run in a lab of its own. The run's Failed describes a
// failure; an error means that no run can be made at all.
func Measure(ctx context.Context, o Options, next Task) (Run, error) {
	shape, err := next.Layout.shape()
	if err := errors.Join(err, next.Layout.Validate()); err != nil {
		return Run{}, err
	}
	run := Run{Layout: next.Layout.Name, Manager: next.Manager.Name, Round: next.Round, Build: o.Build,
		Began: time.Now().UTC().Truncate(time.Second)}
	clock := cputime.Start()
	limited, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	s := &session{Options: o, layout: next.Layout, manager: next.Manager}
	if err := s.measure(limited, shape, &run); err != nil {
		run.Failed = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	run.Took, run.Others = clock.Wall().Seconds(), clock.Others()
	return run, ctx.Err()
}

// session is one run while it lasts.
type session struct {
	Options
	layout  Layout
	manager Manager
	host    *lab.Host
	scope   *labcounter.Counter
	began   time.Time // when the guests began to work
}

func (s *session) measure(ctx context.Context, shape lab.Shape, run *Run) (err error) {
	s.host, err = lab.Boot(ctx, lab.Options{Shape: shape, Libvirt: true, Progress: s.Progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.host.Kill()) }()
	if s.scope, err = s.host.Scope(); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *Run) error{s.start, s.begin, s.work, s.end} {
		if err := step(ctx, run); err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) { // else the user waits for the end
				run.Notes = s.afterFailure(ctx)
			}
			return err
		}
	}
	return nil
}

// Of a failed run: how long the manager may take to print its notes, and how much of each console they have.
const (
	notesTime   = time.Minute
	consoleTail = 2000 // bytes
)

// afterFailure collects what may explain a failure, as far as the lab still answers: the manager's output, and the last
// output of the lab's kernel and of each guest.
func (s *session) afterFailure(ctx context.Context) string {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), notesTime)
	defer cancel()
	notes, err := s.sh(limited, s.manager.after, s.layout.names()...)
	if err != nil {
		notes = err.Error() + "\n"
	}
	tail := func(of string, console []byte, err error) {
		if err != nil {
			console = []byte(err.Error())
		}
		notes += fmt.Sprintf("console of %s:\n%s\n", of, console[max(0, len(console)-consoleTail):])
	}
	console, err := s.host.Console()
	tail("the lab", console, err)
	for _, name := range s.layout.names() {
		console, err := s.host.GuestConsole(name)
		tail("VM "+name, console, err)
	}
	executed, err := s.sh(limited, executing, s.layout.names()...)
	if err != nil {
		executed += err.Error() + "\n"
	}
	return notes + "what the vCPUs executed, twice:\n" + executed
}

// executing prints where each guest's vCPUs are, in the kernel of the guest (CPL=0) or a program (CPL=3), and how much
// CPU time QEMU has used, in hundredths of a second: a vCPU that is stuck stays there.
const executing = `for i in 1 2; do for g; do
echo "$g: $(awk '{print $14 + $15}' /proc/$(cat /run/libvirt/qemu/$g.pid)/stat) $(
virsh -q qemu-monitor-command $g --hmp 'info registers -a' | grep -oE '[RE]IP=[0-9a-f]+|CPL=[0-9]|HLT=[0-9]' | xargs)"
done; done`

// start brings those guests up that are there at the beginning, until all have
// filled their memory.
func (s *session) start(ctx context.Context, _ *Run) error {
	if err := errors.Join(s.host.AddGuest(ctx), s.host.AddScatter(ctx)); err != nil {
		return err
	}
	if _, err := s.sh(ctx, "echo 0 > /proc/sys/kernel/numa_balancing || exit; "+s.manager.before); err != nil {
		return err
	}
	for i, v := range s.layout.VMs {
		if v.Created > 0 {
			continue
		}
		if err := s.create(ctx, i); err != nil {
			return err
		}
		if !s.manager.oneByOne {
			continue
		}
		if err := s.host.AwaitGuest(ctx, nameOf(i)); err != nil {
			return err
		}
	}
	for i, v := range s.layout.VMs {
		if v.Created > 0 {
			continue
		}
		if err := s.host.AwaitGuest(ctx, nameOf(i)); err != nil {
			return err
		}
	}
	s.Progress("%s: the VMs are ready", s.manager.Name)
	return nil
}

// withProcess makes a script's $2 the guest's process.
const withProcess = "set -- $1 $(cat /run/libvirt/qemu/$1.pid)\n"

func (s *session) create(ctx context.Context, vm int) error {
	script := "cat > /run/$1.xml <<'X'\n" + s.manager.domain(s.layout, vm) + "\nX\nvirsh -q create /run/$1.xml"
	if s.layout.VMs[vm].Created == 0 {
		script += " || exit; " + withProcess + s.manager.created
	}
	_, err := s.sh(ctx, script, nameOf(vm))
	return err
}

// distribute puts the memory of a guest with a worst-case start onto its nodes.
func (s *session) distribute(ctx context.Context, vm int) error {
	if !s.manager.worstStart {
		return nil
	}
	_, err := s.sh(ctx, s.layout.scatter(vm), nameOf(vm))
	return err
}

// release takes the limits of a worst-case start from a guest.
func (s *session) release(ctx context.Context, vm int) error {
	if !s.manager.worstStart {
		return nil
	}
	_, err := s.sh(ctx, s.layout.release(vm), nameOf(vm))
	if err == nil {
		_, err = s.sh(ctx, withProcess+s.manager.released, nameOf(vm))
	}
	return err
}

// locations prints a line per guest: its memory by node, and the CPUs on which its vCPUs are.
const locations = `for g; do pid=$(cat /run/libvirt/qemu/$g.pid) || exit
echo "$g:$(grep -h "^anon " /sys/fs/cgroup/machine/qemu-*-$g.libvirt-qemu/memory.numa_stat | awk '{for (i = 2; i <= NF; i++) {split($i, a, "="); printf " %s %.0f MiB", a[1], a[2] / 1048576}}'), vCPUs on CPUs$(
for t in /proc/$pid/task/*; do grep -q KVM $t/comm && awk '{printf " %s", $40}' $t/stat; done)"; done`

// moved runs in the background without end, and records once a window how many
// pages the host's kernel has moved.
const moved = `setsid sh -c 'while :; do awk "/^pgmigrate_success/ {print \$2}" /proc/vmstat >> /lab/files/moved; sleep $0; done' %g >/dev/null 2>&1 &`

// begin removes the limits of a worst-case start, switches distance on, starts the manager and lets the guests work.
func (s *session) begin(ctx context.Context, run *Run) error {
	var ready []int
	var names []string
	for i, v := range s.layout.VMs {
		if v.Created == 0 {
			ready, names = append(ready, i), append(names, nameOf(i))
		}
	}
	for _, vm := range ready {
		if err := s.distribute(ctx, vm); err != nil {
			return err
		}
	}
	if s.manager.balancing { // not before: it would begin with what is distributed and still restricted
		if _, err := s.sh(ctx, "echo 1 > /proc/sys/kernel/numa_balancing"); err != nil {
			return err
		}
	}
	for _, vm := range ready {
		if err := s.release(ctx, vm); err != nil {
			return err
		}
	}
	// Before the manager is ready: it may measure the host when it starts, and VMs use CPUs for a moment.
	if err := s.scope.Set(ctx, labcounter.Felt); err != nil {
		return err
	}
	if _, err := s.sh(ctx, s.manager.ready, s.layout.names()...); err != nil {
		return err
	}
	var err error
	if run.Start, err = s.lines(ctx, locations, names...); err != nil {
		return err
	}
	run.Memory = make([][]uint64, len(s.layout.VMs))
	for i, vm := range ready {
		if run.Memory[vm], err = parseMemory(run.Start[i], s.layout.Nodes); err != nil {
			return err
		}
	}
	if _, err := s.sh(ctx, fmt.Sprintf(moved, s.Window.Seconds())); err != nil {
		return err
	}
	if err := s.host.StartOrders(ctx, s.Window, s.orders(ready)); err != nil {
		return err
	}
	s.began = time.Now()
	return s.scope.Reset()
}

// orders tells those of the guests to work that ever work.
func (s *session) orders(vms []int) []lab.WorkOrder {
	var orders []lab.WorkOrder
	for _, vm := range vms {
		v := s.layout.VMs[vm]
		if !v.busy() {
			continue
		}
		o := lab.WorkOrder{Name: nameOf(vm), Times: s.windows(s.layout) - s.firstWindow(v)}
		for _, p := range v.Phases {
			o.Phases = append(o.Phases, lab.Phase{At: time.Duration(p.At) * time.Second, From: p.From, To: p.To})
		}
		orders = append(orders, o)
	}
	return orders
}

// firstWindow is the first window in which a guest works.
func (s *session) firstWindow(v VM) int {
	if v.Created == 0 {
		return 0
	}
	after := time.Duration(v.Created+bootSeconds) * time.Second
	return int((after + s.Window - 1) / s.Window)
}

// work lets the guests work for the length of a run, those that come in its
// midst too.
func (s *session) work(ctx context.Context, run *Run) error {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := s.late(both, run)
		if err != nil {
			cancel()
		}
		done <- err
	}()
	err := s.watch(both, run)
	cancel()
	if late := <-done; late != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return late
	}
	if err != nil {
		return err
	}
	return s.fill(ctx, run)
}

// late creates the guests that come in the midst of the run, each in its time.
func (s *session) late(ctx context.Context, run *Run) error {
	errs := make([]error, len(s.layout.VMs))
	var all sync.WaitGroup
	for vm, v := range s.layout.VMs {
		if v.Created > 0 {
			all.Go(func() { errs[vm] = s.lateGuest(ctx, vm, run) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *session) lateGuest(ctx context.Context, vm int, run *Run) error {
	v := s.layout.VMs[vm]
	if err := s.sleepUntil(ctx, time.Duration(v.Created)*time.Second); err != nil {
		return err
	}
	due := time.Duration(s.firstWindow(v)) * s.Window
	if err := s.createBy(ctx, vm, s.began.Add(due), run); err != nil {
		return err
	}
	if err := s.sleepUntil(ctx, due); err != nil {
		return err
	}
	return s.host.StartOrders(ctx, s.Window, s.orders([]int{vm}))
}

// createBy creates a guest that must be ready at a time, and records where its
// memory is then.
func (s *session) createBy(ctx context.Context, vm int, due time.Time, run *Run) error {
	name, begin := nameOf(vm), time.Now()
	limited, cancel := context.WithDeadline(ctx, due)
	defer cancel()
	err := s.create(limited, vm)
	if err == nil {
		err = s.host.AwaitGuest(limited, name)
	}
	if err != nil {
		return fmt.Errorf("VM %s was not ready %.0f s after its creation: %w", name, time.Since(begin).Seconds(), err)
	}
	s.Progress("%s: VM %s is ready %.0f s after its creation", s.manager.Name, name, time.Since(begin).Seconds())
	where, err := s.lines(ctx, locations, name)
	if err == nil {
		run.Memory[vm], err = parseMemory(where[0], s.layout.Nodes)
	}
	return err
}

// sleepUntil waits for a time after the beginning.
func (s *session) sleepUntil(ctx context.Context, after time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(s.began.Add(after))):
		return nil
	}
}

// watch reads the counter at the end of each window, from outside.
func (s *session) watch(ctx context.Context, run *Run) error {
	shape := s.host.Shape
	var before Accesses
	windows := s.windows(s.layout)
	for i := range windows {
		if err := s.sleepUntil(ctx, time.Duration(i+1)*s.Window); err != nil {
			return fmt.Errorf("window %d of %d: %w", i+1, windows, err)
		}
		misses, err := s.scope.Read()
		if err != nil {
			return err
		}
		sum := classify(shape, misses)
		run.Windows = append(run.Windows, Window{Accesses: sum.Minus(before)})
		local, _, _ := sum.Minus(before).Shares()
		s.Progress("%s: %v of %d s, %.1f %% local, %.0f ns", s.manager.Name, time.Duration(i+1)*s.Window,
			s.layout.Seconds, 100*local, sum.Minus(before).MeanNanos())
		before = sum
	}
	return nil
}

// fill adds the guests' own reports and the kernel's count of moved pages.
func (s *session) fill(ctx context.Context, run *Run) error {
	for i, v := range s.layout.VMs {
		if err := s.fillWork(ctx, run, nameOf(i), v); err != nil {
			return err
		}
	}
	return s.fillMoved(run)
}

// tardiness is how long after the end of the last window a guest may report its
// work. Guests begin one after the other, on a slow machine up to 20 seconds apart.
const tardiness = time.Minute

// fillWork adds a guest's reports to the windows; where the guest did not work
// yet, or never works, it did nothing.
func (s *session) fillWork(ctx context.Context, run *Run, name string, v VM) error {
	first := s.firstWindow(v)
	if !v.busy() {
		first = len(run.Windows)
	}
	for i := range first {
		run.Windows[i].Seconds = append(run.Windows[i].Seconds, s.Window.Seconds())
		run.Windows[i].Lines = append(run.Windows[i].Lines, 0)
	}
	said, err := s.reports(ctx, name, len(run.Windows)-first)
	if err != nil {
		return err
	}
	var before lab.Work
	for i, now := range said {
		w := &run.Windows[first+i]
		w.Seconds = append(w.Seconds, (now.Elapsed - before.Elapsed).Seconds())
		w.Lines = append(w.Lines, now.Lines-before.Lines)
		before = now
	}
	return nil
}

// reports waits for a guest's last report of that number, and returns all.
func (s *session) reports(ctx context.Context, name string, number int) ([]lab.Work, error) {
	for end := time.Now().Add(tardiness); number > 0; {
		said, err := s.host.Worked(name)
		if err != nil {
			return nil, err
		}
		if len(said) >= number {
			return said[:number], nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return nil, fmt.Errorf("VM %s reported %d windows of %d: %w", name, len(said), number,
				errors.Join(ctx.Err(), errors.New("it has stopped or is too slow")))
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, nil
}

// nodeMemory matches a figure of the script locations.
var nodeMemory = regexp.MustCompile(`N([0-9]+) ([0-9]+) MiB`)

// parseMemory reads a line of the script locations: MiB by node.
func parseMemory(line string, nodes int) ([]uint64, error) {
	byNode := make([]uint64, nodes)
	found := nodeMemory.FindAllStringSubmatch(line, -1)
	for _, m := range found {
		node, err := strconv.Atoi(m[1])
		if err != nil || node >= nodes {
			return nil, fmt.Errorf("memory by node: %q names node %s of %d", line, m[1], nodes)
		}
		if byNode[node], err = strconv.ParseUint(m[2], 10, 64); err != nil {
			return nil, fmt.Errorf("memory by node: %q: %w", line, err)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("memory by node: %q has no figure", line)
	}
	return byNode, nil
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
	if run.End, err = s.lines(ctx, locations, s.layout.names()...); err != nil {
		return err
	}
	run.Notes, err = s.sh(ctx, s.manager.after, s.layout.names()...)
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
