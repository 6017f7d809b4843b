package guestagent

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// Bench parks and returns the last vCPU by each means that the kernel has, in turn, so
// that noise meets all of them alike. It writes the median and the 99th percentile
// of one change, with what the agent reads before and after it, and of the writes
// alone. The last vCPU but one is parked throughout.
func Bench(out io.Writer, rounds int) error {
	p := newParker(newLinux(), time.Sleep)
	if p.means != guest.Partition {
		return errors.New("the kernel has no cpuset partitions: cgroup v2 with the cpuset controller is needed")
	}
	present, parked, err := p.state()
	ids := present.IDs()
	if err != nil || len(ids) < 3 || parked != (guest.VCPUs{}) {
		return fmt.Errorf("vCPUs %v are parked of %v; needed: 3 vCPUs, and none parked (%w)", parked, present, err)
	}
	resident := guest.Of(ids[len(ids)-2])
	both := resident.Or(guest.Of(ids[len(ids)-1]))
	b := &bench{parker: p, times: map[string][]time.Duration{}}
	last := guest.Of(ids[len(ids)-1])
	for range rounds {
		err := errors.Join(
			b.change("limit", guest.Partition, resident, both, false),
			b.change("partition", guest.Partition, resident, both, true),
			b.change("offline, RCU expedited", guest.Offline, guest.VCPUs{}, last, false),
			b.limits(resident, both),
			b.writes(resident, ids[len(ids)-1]))
		if err != nil {
			return err
		}
	}
	for range min(rounds, mostPauses) {
		if err := b.afterPauses(resident, both); err != nil {
			return err
		}
	}
	if err := b.now(guest.VCPUs{}); err != nil {
		return err
	}
	write := func(means string) time.Duration {
		return median(b.times["write of "+means+", park"]) + median(b.times["write of "+means+", return"])
	}
	defer func() {
		_, _ = fmt.Fprintf(out, "limiting programs and back takes 1/%.0f of taking a CPU offline and online\n",
			write("'online'").Seconds()/write("limits").Seconds())
	}()
	for _, name := range slices.Sorted(maps.Keys(b.times)) {
		t := b.times[name]
		t = slices.Sorted(slices.Values(t))
		_, err := fmt.Fprintf(out, "%-40s median %8.3f ms  p99 %8.3f ms  (%d times)\n", name,
			median(t).Seconds()*1000, t[len(t)*99/100].Seconds()*1000, len(t))
		if err != nil {
			return err
		}
	}
	return nil
}

func median(times []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(times))[len(times)/2]
}

// bench collects times by what they are of.
type bench struct {
	*parker
	times map[string][]time.Duration
}

// now parks exactly these vCPUs by partition, whatever was parked before.
func (b *bench) now(want guest.VCPUs) error {
	b.means = guest.Partition
	present, parked, err := b.state()
	if err != nil {
		return err
	}
	return b.park(present, parked, want)
}

// change parks one set of vCPUs, and measures the change to a second one and back. The vCPUs that are parked by limits
// of programs are set apart in between.
func (b *bench) change(name string, means guest.Means, first, second guest.VCPUs, apart bool) error {
	if err := b.now(first); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		want guest.VCPUs
	}{{name + ", park", second}, {name + ", return", first}} {
		b.means = means
		start := time.Now()
		present, parked, err := b.state()
		if err != nil {
			return err
		}
		if err := b.park(present, parked, c.want); err != nil {
			return err
		}
		if apart && b.limited != (guest.VCPUs{}) {
			if err := b.setApart(b.limited, false); err != nil {
				return err
			}
		}
		b.times[c.name] = append(b.times[c.name], time.Since(start))
		if b.means != means {
			return fmt.Errorf("means %q does not work", means)
		}
	}
	return nil
}

// limits measures the writes of the programs' limits alone.
func (b *bench) limits(resident, both guest.VCPUs) error {
	if err := b.now(resident); err != nil {
		return err
	}
	for _, c := range []struct {
		name   string
		parked guest.VCPUs
	}{{"write of limits, park", both}, {"write of limits, return", resident}} {
		start := time.Now()
		b.programs.limit(b.present, b.present.Without(c.parked))
		b.times[c.name] = append(b.times[c.name], time.Since(start))
	}
	return nil
}

// mostPauses bounds the rounds with pauses of a second.
const mostPauses = 20

// afterPauses measures the writes of the programs' limits a second after the last change of a cpuset, as hand-overs
// make them: such a write waits for a grace period of RCU on kernels before Linux 6.4 (percpu_down_write of
// cpuset_rwsem, rcu_sync_enter in kernel/rcu/sync.c).
func (b *bench) afterPauses(resident, both guest.VCPUs) error {
	if err := b.now(resident); err != nil {
		return err
	}
	for _, c := range []struct {
		name   string
		parked guest.VCPUs
	}{{"write of limits after 1 s, park", both}, {"write of limits after 1 s, return", resident}} {
		time.Sleep(time.Second)
		start := time.Now()
		b.programs.limit(b.present, b.present.Without(c.parked))
		b.times[c.name] = append(b.times[c.name], time.Since(start))
	}
	return nil
}

// writes measures what the kernel alone takes: the write that makes or ends
// a partition, and of a vCPU's state as an operator writes it, without expedited RCU.
func (b *bench) writes(resident guest.VCPUs, id int) error {
	if err := b.now(resident); err != nil {
		return err
	}
	b.programs.limit(b.present, b.present.Without(resident).Without(guest.Of(id))) // else the kernel makes no partition
	defer func() { b.programs.limit(b.present, b.present.Without(resident)) }()
	kind, online := b.folder(id)+"/cpuset.cpus.partition", fmt.Sprintf("%scpu%d/online", cpuFolder, id)
	for _, change := range []struct{ name, file, value string }{
		{"write of a partition, park", kind, "root"}, {"write of a partition, return", kind, "member"},
		{"write of 'online', park", online, "0"}, {"write of 'online', return", online, "1"},
	} {
		start := time.Now()
		if err := b.k.write(change.file, change.value); err != nil {
			return err
		}
		b.times[change.name] = append(b.times[change.name], time.Since(start))
	}
	return nil
}
