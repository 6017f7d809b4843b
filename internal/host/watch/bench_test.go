package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// One observation of 200 VMs of 4 vCPUs on 8 nodes, all of them running, from
// files of the page cache: it excludes the kernel's own work for each file.
func BenchmarkSample(b *testing.B) {
	for _, busy := range []bool{true, false} {
		b.Run(fmt.Sprintf("busy=%v", busy), func(b *testing.B) {
			w := newWorld(b, 8, 32)
			for i := range 200 {
				cpu := topology.CPUID(i % 256)
				w.add(fmt.Sprintf("vm%03d", i), 10000+100*i,
					byNode{topology.NodeID(i % 8): 4 * gib, topology.NodeID((i + 1) % 8): gib}, cpu, (cpu+1)%256,
					(cpu+2)%256, (cpu+40)%256)
			}
			watcher := w.watcher(Options{})
			watcher.Sample()
			var cost time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				w.now = w.now.Add(time.Second)
				if busy {
					for _, e := range watcher.guests {
						for i := range e.threads {
							e.threads[i].run -= 100 * time.Millisecond // as if each had run since then
						}
					}
				}
				b.StartTimer()
				cost += watcher.Sample().Cost
			}
			b.ReportMetric(float64(cost.Microseconds())/float64(b.N), "cpu-µs/sample")
		})
	}
}
