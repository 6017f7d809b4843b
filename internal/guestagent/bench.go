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
			b.change("partition", guest.Partition, resident, both),
			b.change("offline, RCU expedited", guest.Offline, guest.VCPUs{}, last),
			b.writes(resident, ids[len(ids)-1]))
		if err != nil {
			return err
		}
	}
	p.means = guest.Partition
	if err := p.park(guest.VCPUs{}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b.times)) {
		t := b.times[name]
		slices.Sort(t)
		_, err := fmt.Fprintf(out, "%-36s median %8.3f ms  p99 %8.3f ms  (%d times)\n", name,
			t[len(t)/2].Seconds()*1000, t[len(t)*99/100].Seconds()*1000, len(t))
		if err != nil {
			return err
		}
	}
	return nil
}

// bench collects times by what they are of.
type bench struct {
	*parker
	times map[string][]time.Duration
}

// change parks one set of vCPUs, and measures the change to a second one and back.
func (b *bench) change(name string, means guest.Means, first, second guest.VCPUs) error {
	b.means = guest.Partition
	if err := b.park(first); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		want guest.VCPUs
	}{{name + ", park", second}, {name + ", return", first}} {
		b.means = means
		start := time.Now()
		if err := b.park(c.want); err != nil {
			return err
		}
		b.times[c.name] = append(b.times[c.name], time.Since(start))
		if b.means != means {
			return fmt.Errorf("means %q does not work", means)
		}
	}
	return nil
}

// writes measures what the kernel alone takes: the write that makes or ends
// a partition, and of a vCPU's state as an operator writes it, without expedited RCU.
func (b *bench) writes(resident guest.VCPUs, id int) error {
	b.means = guest.Partition
	if err := b.park(resident); err != nil {
		return err
	}
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
