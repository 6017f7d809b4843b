package guestagent

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

const (
	cpuFolder  = "/sys/devices/system/cpu/"
	systemRoot = "/sys/fs/cgroup"
	// ownRoot is where the agent mounts the cgroup hierarchy in a guest that has not
	// mounted it.
	ownRoot = "/run/numavisor-guest/cgroup"
	// partition begins the names of the partitions: one for each vCPU that has been parked.
	partition  = "/numavisor-parked-"
	expedite   = "/sys/kernel/rcu_expedited"
	workqueues = "/sys/devices/virtual/workqueue/cpumask"
)

// parker takes vCPUs out of the guest's scheduling: they are parked.
type parker struct {
	k     kernel
	means guest.Means
	// root is the folder of all cgroups; empty: there are no partitions. made are the vCPUs that have a cgroup for one,
	// apart those of which the agent, or one before it, made a partition.
	root        string
	made, apart guest.VCPUs
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
	present, err := p.set(cpuFolder + "present")
	if err != nil {
		return p
	}
	ids := present.IDs()
	p.root = root
	for _, id := range ids {
		if kind, err := k.read(p.folder(id) + "/cpuset.cpus.partition"); err == nil && kind == "root" {
			p.apart.Add(id)
		}
	}
	if p.group(ids[len(ids)-1]) == nil {
		p.means = guest.Partition
	} else {
		p.root = ""
	}
	return p
}

// folder is that of a vCPU's partition.
func (p *parker) folder(id int) string { return p.root + partition + strconv.Itoa(id) }

// group makes the cgroup of a vCPU's partition, which is not in effect at first.
func (p *parker) group(id int) error {
	if p.made.Has(id) {
		return nil
	}
	if err := p.k.mkdir(p.folder(id)); err != nil {
		return err
	}
	if _, err := p.k.read(p.folder(id) + "/cpuset.cpus.partition"); err != nil {
		return err
	}
	if err := p.k.write(p.folder(id)+"/cpuset.cpus", strconv.Itoa(id)); err != nil {
		return err
	}
	p.made.Add(id)
	return nil
}

// state reads which vCPUs exist and which are parked, from the kernel: those that are offline, or
// in a partition.
func (p *parker) state() (present, parked guest.VCPUs, err error) {
	if present, err = p.set(cpuFolder + "present"); err != nil {
		return present, parked, err
	}
	online, err := p.set(cpuFolder + "online")
	if err != nil {
		return present, parked, err
	}
	parked = present.Without(online)
	if p.root != "" {
		rest, err := p.set(p.root + "/cpuset.cpus.effective")
		if err != nil {
			return present, parked, err
		}
		parked = parked.Or(p.apart.And(present).Without(rest))
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
			err = p.change(parked, want)
		case guest.Offline:
			err = p.offline(present, want)
		case guest.None, guest.Flip:
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
	if p.means == guest.Partition {
		for _, id := range p.apart.IDs() {
			_ = p.k.write(p.folder(id)+"/cpuset.cpus.partition", "member") // else it shows as parked
		}
		p.means = guest.Offline
		return
	}
	p.means = guest.None
}

// change makes a partition of each vCPU that is to be parked, and ends those of the others.
//
// Each has one of its own, so that the kernel has no scheduling domain for it: else it would be one of the idle
// CPUs that the kernel wakes to balance for busy ones, many times a second. This thread runs on the vCPU while it
// parks it: the kernel decides whether a vCPU is one of those when it goes idle. The partition is not of kind
// isolated, since kernels before 6.6 do not rebuild the domains of all when such a one changes.
func (p *parker) change(parked, want guest.VCPUs) error {
	for _, id := range parked.Without(want).IDs() {
		if err := p.k.write(p.folder(id)+"/cpuset.cpus.partition", "member"); err != nil {
			return err
		}
		p.apart = p.apart.Without(guest.Of(id))
	}
	defer p.k.leave()
	for _, id := range want.Without(parked).IDs() {
		if err := p.group(id); err != nil {
			return err
		}
		p.apart.Add(id)
		p.k.stand(id)
		if err := p.k.write(p.folder(id)+"/cpuset.cpus.partition", "root"); err != nil {
			return err
		}
	}
	return nil
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
	// patient is the number of looks before interrupts, workqueues and kernel threads are moved: most vCPUs are idle
	// sooner, and that takes longer.
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
			p.moveWork(used)
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
