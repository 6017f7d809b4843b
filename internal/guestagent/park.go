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
	// apart those of which the agent, or one before it, made a partition, and limited those that programs may not use.
	root                 string
	made, apart, limited guest.VCPUs
	programs             programs
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
	p.root = root
	for _, id := range present.IDs() {
		if kind, err := k.read(p.folder(id) + "/cpuset.cpus.partition"); err == nil && kind == "root" {
			p.apart.Add(id)
		}
	}
	p.present, p.programs = present, programs{k: k, root: root}
	p.programs.gather()
	p.programs.find()
	p.findLimited()
	if err := p.tryApart(); err != nil {
		p.leaveCgroups() // to the next means, also what an agent before this one left
		return p
	}
	p.means = guest.Partition
	p.programs.find()
	return p
}

// findLimited finds the vCPUs that an agent before this one has not allowed to programs.
func (p *parker) findLimited() {
	online, err := p.set(cpuFolder + "online")
	if in, ok := p.programs.inUse(); ok && err == nil {
		p.limited = p.programs.allowed(p.present).And(online).Without(in).Without(p.apart)
	}
}

// tryApart makes a partition of the last vCPU that is online, and ends it: then the kernel can. Where there is a
// partition, it can.
func (p *parker) tryApart() error {
	online, err := p.set(cpuFolder + "online")
	ids := online.IDs()
	if err != nil || p.apart != (guest.VCPUs{}) || len(ids) < 2 {
		return err
	}
	limited, last := p.limited, guest.Of(ids[len(ids)-1])
	p.programs.limit(p.present, p.present.Without(limited).Without(last))
	p.limited = limited.Or(last)
	err = p.setApart(last, false) // the next line ends it
	err = errors.Join(err, p.k.write(p.folder(ids[len(ids)-1])+"/cpuset.cpus.partition", "member"))
	p.apart, p.limited = guest.VCPUs{}, limited
	p.programs.limit(p.present, p.present.Without(limited))
	return err
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

// state reads which vCPUs exist and which are parked, from the kernel: those that are offline, in a partition, or not
// allowed to programs.
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
		in, ok := p.programs.inUse()
		if !ok {
			if in, err = p.set(p.root + "/cpuset.cpus.effective"); err != nil {
				return present, parked, err
			}
		}
		parked = parked.Or(p.apart.Or(p.limited).And(present).Without(in))
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

// park parks exactly these vCPUs, of those present, by the fastest means that works. A means that
// fails is not tried again. parked are the vCPUs that are parked now.
func (p *parker) park(present, parked, want guest.VCPUs) error {
	var errs []error
	for parked != want {
		var err error
		switch p.means {
		case guest.Partition:
			parked, err = p.change(present, parked, want)
		case guest.Offline:
			if err = p.offline(present, want); err == nil {
				_, parked, err = p.state()
			}
		case guest.None, guest.Flip:
			return errors.Join(errs...)
		}
		if err == nil && parked == want {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.means,
			errors.Join(err, fmt.Errorf("parked vCPUs %v, want %v", parked, want))))
		p.next()
	}
	return nil
}

// next chooses the means that is slower, and takes back what the present one did.
func (p *parker) next() {
	if p.means == guest.Partition {
		p.leaveCgroups()
		p.means = guest.Offline
		return
	}
	p.means = guest.None
}

// leaveCgroups ends all partitions, and lifts all limits, for good.
func (p *parker) leaveCgroups() {
	for _, id := range p.present.IDs() {
		_ = p.k.write(p.folder(id)+"/cpuset.cpus.partition", "member") // most have none
	}
	p.programs.limit(p.present, p.present)
	p.root, p.apart, p.limited, p.programs = "", guest.VCPUs{}, guest.VCPUs{}, programs{}
}

// change lets programs use the other vCPUs alone, and returns those that are parked then. That is enough until set
// apart makes partitions of them. A vCPU that programs can still use, since they are in no cgroup or are allowed no
// other one, is set apart at once.
func (p *parker) change(present, parked, want guest.VCPUs) (now guest.VCPUs, err error) {
	for _, id := range p.apart.And(parked).Without(want).IDs() {
		if err := p.k.write(p.folder(id)+"/cpuset.cpus.partition", "member"); err != nil {
			return parked, err
		}
		p.apart = p.apart.Without(guest.Of(id))
	}
	p.programs.limit(present, present.Without(want))
	p.limited = want.Without(p.apart).Without(p.programs.foreign)
	if _, now, err = p.state(); err != nil || want.Without(now) == (guest.VCPUs{}) {
		return now, err
	}
	p.renew()
	if err := p.setApart(want.Without(now), false); err != nil {
		return now, err
	}
	_, now, err = p.state()
	return now, err
}

// renew limits programs whose cgroups are new, or whose limits others have changed.
func (p *parker) renew() {
	p.programs.find()
	p.programs.limit(p.present, p.present.Without(p.apart).Without(p.limited))
}

// tickOf100Hz is a little more than the longest time between two ticks of a busy vCPU (CONFIG_HZ=100).
const tickOf100Hz = 11 * time.Millisecond

// setApart makes a partition of each of these vCPUs: then no program can use them, also not one whose cgroup is new.
//
// Each has one of its own, so that the kernel has no scheduling domain for it: else it would be one of the idle
// CPUs that the kernel wakes to balance for busy ones, hundreds of times a second. This thread runs on the vCPU while
// it parks it: a vCPU becomes one of those when it goes idle, and is none any more after a tick at which it is busy
// (nohz_balance_enter_idle and nohz_balancer_kick in kernel/sched/fair.c). If the vCPU is idle, the thread first runs
// there until such a tick has come: one without a domain does not count. The partition is not of kind isolated, since
// kernels before 6.6 do not rebuild the domains of all when such a one changes.
func (p *parker) setApart(ids guest.VCPUs, idle bool) error {
	defer p.k.leave()
	for _, id := range ids.IDs() {
		if err := p.group(id); err != nil {
			return err
		}
		p.apart.Add(id)
		p.k.stand(id)
		if idle {
			p.k.runFor(tickOf100Hz)
		}
		file := p.folder(id) + "/cpuset.cpus.partition"
		if kind, err := p.k.read(file); err == nil && kind != "member" {
			_ = p.k.write(file, "member") // an invalid one stays so if it is not ended first
		}
		if err := p.k.write(file, "root"); err != nil {
			return err
		}
		p.limited = p.limited.Without(guest.Of(id))
	}
	return p.checkApart()
}

// checkApart reports partitions that are not in effect. Their vCPUs count as limited again.
func (p *parker) checkApart() error {
	var errs []error
	for _, id := range p.apart.IDs() {
		kind, err := p.k.read(p.folder(id) + "/cpuset.cpus.partition")
		if err == nil && kind == "root" {
			continue
		}
		p.apart, p.limited = p.apart.Without(guest.Of(id)), p.limited.Or(guest.Of(id))
		errs = append(errs, errors.Join(err, fmt.Errorf("vCPU %d is no partition: its cgroup is %q", id, kind)))
	}
	return errors.Join(errs...)
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
	// mostLooks bounds the looks before an acknowledgement. After it, each message and each measurement is one look.
	mostLooks = 20
	// patient is the number of looks before interrupts, workqueues and kernel threads are moved: most vCPUs are idle
	// sooner, and that takes longer.
	patient = 3
	// idleBelow is the share of a look in which an idle vCPU may run: kernel
	// threads of its own (timers, RCU) stay.
	idleBelow = 0.25
)

// settle waits until the parked vCPUs are idle, for some looks at most, and returns those that are not.
func (p *parker) settle(parked, used guest.VCPUs, looks int) guest.VCPUs {
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
