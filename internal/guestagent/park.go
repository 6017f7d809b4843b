package guestagent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

const (
	cpuFolder  = "/sys/devices/system/cpu/"
	systemRoot = "/sys/fs/cgroup"
	// ownRoot is where the agent mounts the cgroup hierarchy in a guest that has not
	// mounted it.
	ownRoot    = "/run/numavisor-guest/cgroup"
	partition  = "/numavisor-parked"
	expedite   = "/sys/kernel/rcu_expedited"
	workqueues = "/sys/devices/virtual/workqueue/cpumask"
)

// parker takes vCPUs out of the guest's scheduling: they are parked.
type parker struct {
	k     kernel
	means guest.Means
	// group is the folder of the partition; empty: there is none.
	group string
	// present and parked are the vCPUs when they were last read.
	present, parked guest.VCPUs
	// irqs are the interrupts by number, as they were last read or written; nil: not yet.
	irqs map[string]*irq
	wait func(time.Duration)
}

// irq is an interrupt.
type irq struct {
	// first is its affinity when the agent first saw it, now the present one.
	first, now guest.VCPUs
	// fixed says that the kernel refuses to move it: a managed interrupt, or that of a timer.
	fixed bool
}

// newParker finds the fastest means that the kernel offers.
func newParker(k kernel, wait func(time.Duration)) *parker {
	p := &parker{k: k, means: guest.Offline, wait: wait}
	root := systemRoot
	if _, err := k.read(root + "/cgroup.controllers"); err != nil {
		root = ownRoot
		if _, err := k.read(root + "/cgroup.controllers"); err != nil {
			if k.mkdir(root) != nil || k.mountCgroup(root) != nil {
				return p
			}
		}
	}
	// An error shows in that the partition has no files of the cpuset controller.
	_ = k.write(root+"/cgroup.subtree_control", "+cpuset")
	if k.mkdir(root+partition) != nil {
		return p
	}
	if _, err := k.read(root + partition + "/cpuset.cpus.partition"); err == nil {
		p.group, p.means = root+partition, guest.Partition
	}
	return p
}

// state reads which vCPUs exist and which are parked, from the kernel.
func (p *parker) state() (present, parked guest.VCPUs, err error) {
	if present, err = p.set(cpuFolder + "present"); err != nil {
		return present, parked, err
	}
	online, err := p.set(cpuFolder + "online")
	if err != nil {
		return present, parked, err
	}
	parked = present.Without(online)
	if p.separate() {
		cpus, err := p.set(p.group + "/cpuset.cpus.effective")
		if err != nil {
			return present, parked, err
		}
		parked = parked.Or(cpus.And(present))
	}
	p.present, p.parked = present, parked
	return present, parked, nil
}

func (p *parker) set(path string) (guest.VCPUs, error) {
	text, err := p.k.read(path)
	if err != nil {
		return guest.VCPUs{}, err
	}
	return guest.ParseList(text)
}

// separate reports whether the partition is in effect.
func (p *parker) separate() bool {
	if p.group == "" {
		return false
	}
	now, err := p.k.read(p.group + "/cpuset.cpus.partition")
	return err == nil && (now == "isolated" || now == "root")
}

// park parks exactly these vCPUs, by the fastest means that works. A means that
// fails is not tried again.
func (p *parker) park(want guest.VCPUs) error {
	present, parked, err := p.state()
	if err != nil {
		return err
	}
	if want = want.And(present); parked == want {
		return nil
	}
	var errs []error
	for {
		switch p.means {
		case guest.Partition:
			err = p.change(want)
		case guest.Flip:
			err = p.flip(want)
		case guest.Offline:
			err = p.offline(present, want)
		case guest.None:
			return errors.Join(errs...)
		}
		if err == nil {
			if _, parked, err = p.state(); err == nil && parked == want {
				return nil
			}
			err = errors.Join(err, fmt.Errorf("parked vCPUs %v, want %v", parked, want))
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.means, err))
		p.next()
	}
}

// next chooses the means that is slower, and takes back what the present one did.
func (p *parker) next() {
	switch p.means {
	case guest.Partition:
		p.means = guest.Flip
	case guest.Flip:
		_ = p.k.write(p.group+"/cpuset.cpus.partition", "member") // else its CPUs show as parked
		p.means = guest.Offline
	case guest.Offline, guest.None:
		p.means = guest.None
	}
}

// change changes the CPU list of the partition, which remains in effect.
func (p *parker) change(want guest.VCPUs) error {
	// An isolated one is that of an earlier agent: see flip.
	now, err := p.k.read(p.group + "/cpuset.cpus.partition")
	if want == (guest.VCPUs{}) || err != nil || now != "root" {
		return p.flip(want)
	}
	return p.k.write(p.group+"/cpuset.cpus", want.String())
}

// flip ends the partition, and makes it with other CPUs.
func (p *parker) flip(want guest.VCPUs) error {
	file := p.group + "/cpuset.cpus.partition"
	if err := p.k.write(file, "member"); err != nil || want == (guest.VCPUs{}) {
		return err
	}
	if err := p.k.write(p.group+"/cpuset.cpus", want.String()); err != nil {
		return err
	}
	// Not "isolated": kernels before 6.6 do not rebuild the scheduling domains when the list of such a partition
	// changes (fixed by "cgroup/cpuset: Extract out CS_CPU_EXCLUSIVE & CS_SCHED_LOAD_BALANCE handling" of 2023). A
	// vCPU that comes back would get no work. No task is in the partition, so none is balanced in it.
	return p.k.write(file, "root")
}

// offline takes vCPUs offline and brings others online.
func (p *parker) offline(present, want guest.VCPUs) error {
	if old, err := p.k.read(expedite); err == nil && old == "0" && p.k.write(expedite, "1") == nil {
		defer func() { _ = p.k.write(expedite, "0") }()
	}
	var errs []error
	online, err := p.set(cpuFolder + "online")
	if err != nil {
		return err
	}
	for _, id := range present.IDs() {
		value := "1"
		if want.Has(id) {
			value = "0"
		}
		if want.Has(id) == online.Has(id) {
			errs = append(errs, p.k.write(fmt.Sprintf("%scpu%d/online", cpuFolder, id), value))
		}
	}
	return errors.Join(errs...)
}

// moveWork lets interrupts and unbound workqueues use only these vCPUs. It reads the interrupts the
// first time only: a guest has dozens of them, and a hand-over waits for this.
func (p *parker) moveWork(used guest.VCPUs) {
	_ = p.k.write(workqueues, mask(used)) // Linux 4.2 and later
	_ = p.k.write("/proc/irq/default_smp_affinity", mask(used))
	if p.irqs == nil {
		p.readIRQs()
	}
	for name, q := range p.irqs {
		to := q.first.And(used)
		if to == (guest.VCPUs{}) {
			to = used
		}
		if to == q.now || q.fixed {
			continue
		}
		if err := p.k.write(irqFile(name), to.String()); err != nil {
			q.fixed = true
			continue
		}
		q.now = to
	}
}

func irqFile(name string) string { return "/proc/irq/" + name + "/smp_affinity_list" }

// readIRQs reads the affinities of all interrupts.
func (p *parker) readIRQs() {
	names, err := p.k.list("/proc/irq")
	if err != nil {
		return
	}
	fresh := map[string]*irq{}
	for _, name := range names {
		now, err := p.set(irqFile(name))
		if err != nil {
			continue
		}
		q := p.irqs[name]
		if q == nil {
			q = &irq{first: now}
		}
		q.now = now
		fresh[name] = q
	}
	p.irqs = fresh
}

const (
	// look is the time between two looks at a vCPU's run time.
	look = time.Millisecond
	// looks bounds the looks before an acknowledgement; later looks are those of the
	// reports.
	looks = 20
	// patient is the number of looks before kernel threads are moved: most vCPUs are idle sooner, and
	// finding the threads takes longer than that.
	patient = 3
	// idleBelow is the share of a look in which an idle vCPU may run: kernel
	// threads of its own (timers, RCU) stay.
	idleBelow = 0.25
)

// settle waits until the parked vCPUs are idle, and returns those that are not.
func (p *parker) settle(parked, used guest.VCPUs) guest.VCPUs {
	busy := parked
	before, ok := p.runTimes()
	if !ok {
		return guest.VCPUs{} // without CONFIG_SCHEDSTATS: the host looks for itself
	}
	for i := range looks {
		p.wait(look)
		after, _ := p.runTimes()
		for _, id := range busy.IDs() {
			if after[id]-before[id] < uint64(idleBelow*float64(look)) {
				busy = busy.Without(guest.Of(id))
			}
		}
		if busy == (guest.VCPUs{}) {
			return busy
		}
		if i == patient {
			p.k.moveThreads(parked, used)
		}
		before = after
	}
	return busy
}

// runTimes reads from /proc/schedstat how long each vCPU has run tasks, in ns
// (Documentation/scheduler/sched-stats.rst: the 7th figure of a line of a CPU). CPUs
// that are offline have no line.
func (p *parker) runTimes() (times map[int]uint64, ok bool) {
	text, err := p.k.read("/proc/schedstat")
	if err != nil {
		return nil, false
	}
	times = map[int]uint64{}
	for line := range strings.SplitSeq(text, "\n") {
		if id, figures, ok := cpuLine(line); ok && len(figures) >= 7 {
			times[id] = figures[6]
		}
	}
	return times, true
}
