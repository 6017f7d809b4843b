package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/lab/cputime"
)

// decisions measures decisions in this process, in one thread: each VM is decided on and added, and an earlier one
// is removed.
func (r *report) decisions(d *drawn, limit time.Duration) error {
	f, placed, err := scheduled(d)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // for threadTime
	defer runtime.UnlockOSThread()
	random := rand.New(rand.NewPCG(2, 0))
	var elapsed, onCPU []time.Duration
	refused, n := 0, 0
	round := func() error {
		n++
		request := schedule.Request{Spec: drawSpec(random, fmt.Sprintf("new%07d", n))}
		began, beganCPU := time.Now(), threadTime()
		made, err := f.Decide(request)
		elapsed, onCPU = append(elapsed, time.Since(began)), append(onCPU, threadTime()-beganCPU)
		if err != nil {
			refused++
			return nil //nolint:nilerr // counted
		}
		if err := f.Add(made); err != nil {
			return err
		}
		placed = append(placed, onHost{made.Host, made.Spec.Name})
		i, last := random.IntN(len(placed)), len(placed)-1
		gone := placed[i]
		placed[i], placed = placed[last], placed[:last]
		return f.Remove(gone.host, gone.vm)
	}
	for range 200 { // each shape has been seen
		if err := round(); err != nil {
			return err
		}
	}
	elapsed, onCPU = nil, nil
	clock := cputime.Start()
	began, beganCPU := time.Now(), threadTime()
	for time.Since(began) < limit {
		if err := round(); err != nil {
			return err
		}
	}
	took, tookCPU := time.Since(began), threadTime()-beganCPU
	if refused > n/20 {
		return fmt.Errorf("%d VMs of %d were refused: the fleet is too full for this measurement", refused, n)
	}
	of := fmt.Sprintf("decision over %d hosts of 8 nodes, in process: ", d.hosts)
	r.below(of+"p99, ms", milliseconds(percentile(elapsed, 99)), 1)
	r.add("  p99 of its CPU time, ms", "%.2f", milliseconds(percentile(onCPU, 99)))
	r.atLeast("placements a second, in process", float64(len(elapsed))/took.Seconds(), 5000)
	r.add("  placements a CPU second of that thread", "%.0f", float64(len(elapsed))/tookCPU.Seconds())
	r.others(clock, 0)
	return nil
}

type onHost struct{ host, vm string }

// scheduled returns the fleet as the scheduler has it.
func scheduled(d *drawn) (*schedule.Fleet, []onHost, error) {
	var hosts []schedule.Host
	var placed []onHost
	for i := range d.hosts {
		seen := d.inventory(i)
		for g := range seen.Guests {
			placed = append(placed, onHost{hostName(i), seen.Guests[g].Name})
		}
		hosts = append(hosts, schedule.Host{Name: hostName(i), Inventory: &seen})
	}
	f, err := schedule.New(hosts, policy.Policy{}, schedule.Weights{})
	return f, placed, err
}

// threadTime is the CPU time of the thread.
func threadTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) // it fails for a clock that the kernel does not have
	return time.Duration(now.Nano())
}

// percentile returns the smallest value that p percent of all values do not exceed; 0 if there are none.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
