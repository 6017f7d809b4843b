package schedule

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// flavour is one of the shapes that users of a cloud choose from.
type flavour struct{ vcpus, gib, cells int }

var flavours = []flavour{{1, 2, 0}, {2, 4, 0}, {2, 8, 0}, {4, 8, 0}, {4, 16, 0}, {8, 16, 0}, {8, 32, 0}, {8, 64, 0},
	{12, 24, 0}, {16, 32, 0}, {16, 64, 0}, {24, 96, 2}, {32, 64, 2}, {32, 128, 2}}

func draw(r *rand.Rand, i int) Request {
	f := flavours[int(float64(len(flavours))*r.Float64()*r.Float64())] // small ones are more frequent
	s := guest.Spec{Name: fmt.Sprintf("vm%07d", i), VCPUs: f.vcpus, Memory: topology.Bytes(f.gib) * topology.GiB}
	if f.cells > 0 {
		s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: f.cells}
	}
	return Request{Spec: s}
}

// A decision over 10,000 hosts of 8 nodes, filled to 60 % of their CPUs. Each round
// decides on a VM, adds it, and removes another one.
func BenchmarkDecide(b *testing.B) {
	for _, hosts := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) { decide(b, hosts) })
	}
}

// filled returns hosts of 8 nodes that are filled to 60 % of their CPUs, in 50 ways.
func filled(b *testing.B, hosts int, r *rand.Rand) (all []Host, running []*Decision) {
	b.Helper()
	machine := machine(b, "nodes:8 sockets:2 cores:16 memory:96G distances:10,12,32")
	var kinds []*Fleet
	var vms [][]*Decision
	for kind := range min(50, hosts) {
		f, err := New([]Host{{Name: "kind", Inventory: machine}}, policy.Policy{Overcommit: 1}, Weights{})
		if err != nil {
			b.Fatal(err)
		}
		vms = append(vms, nil)
		for vcpus := 0; vcpus < 8*16*6/10; {
			d, err := f.Decide(draw(r, 1000*kind+len(vms[kind])))
			if err != nil {
				continue // a large VM that does not fit on the rest
			}
			if err := f.Add(d); err != nil {
				b.Fatal(err)
			}
			vcpus += d.Spec.VCPUs
			vms[kind] = append(vms[kind], d)
		}
		kinds = append(kinds, f)
	}
	for i := range hosts {
		h := Host{Name: fmt.Sprintf("h%05d", i), Inventory: kinds[i%len(kinds)].hosts[0].Inventory}
		all = append(all, h)
		for _, d := range vms[i%len(kinds)] {
			on := *d
			on.Host = h.Name
			running = append(running, &on)
		}
	}
	return all, running
}

// cpuTime is the CPU time of all threads, garbage collection included: on a machine that others use,
// the elapsed time says less.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// threadTime is the CPU time of the thread: the time of a decision without waiting for a CPU.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func decide(b *testing.B, hosts int) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, uint64(hosts)))
	all, running := filled(b, hosts, r)
	f, err := New(all, policy.Policy{Overcommit: 1}, Weights{})
	if err != nil {
		b.Fatal(err)
	}
	vms, refused := 1_000_000, 0
	runtime.LockOSThread() // for threadTime
	defer runtime.UnlockOSThread()
	var onCPU []time.Duration
	round := func() time.Duration {
		request := draw(r, vms)
		vms++
		begin, beganCPU := time.Now(), threadTime(b)
		d, err := f.Decide(request)
		decided := time.Since(begin)
		onCPU = append(onCPU, threadTime(b)-beganCPU)
		if err != nil {
			refused++
			return decided
		}
		if err := f.Add(d); err != nil {
			b.Fatal(err)
		}
		running = append(running, d)
		i := r.IntN(len(running))
		d, running[i] = running[i], running[len(running)-1]
		running = running[:len(running)-1]
		if err := f.Remove(d.Host, d.Spec.Name); err != nil {
			b.Fatal(err)
		}
		return decided
	}
	for range 200 { // each shape at least once
		round()
	}
	var took []time.Duration
	onCPU = nil
	began, beganThread := cpuTime(b), threadTime(b)
	b.ResetTimer()
	for range b.N {
		took = append(took, round())
	}
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-began).Microseconds())/float64(b.N), "cpu-us/placement")
	b.ReportMetric(float64(b.N)/(threadTime(b)-beganThread).Seconds(), "placements/cpu-s")
	if refused > 10+b.N/20 {
		b.Fatalf("%d VMs of %d were refused", refused, b.N)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	slices.Sort(onCPU)
	b.ReportMetric(float64(onCPU[len(onCPU)*99/100].Microseconds()), "p99-cpu-us")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "placements/s")
}
