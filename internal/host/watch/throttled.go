package watch

import (
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
)

// throttledSampler measures how long a guest's own quota of CPU time held it
// back. That is not waiting for a CPU: the quota would hold it back on any CPU.
type throttledSampler struct {
	files []*linux.CachedFile // cpu.stat of its groups that have a quota
	total uint64              // microseconds, summed over the files, at the last reading
	known bool
}

// find opens cpu.stat of those of the guest's groups that have a quota now.
func (t *throttledSampler) find(w *Watcher, e *guestSampler) {
	files, err := w.cache.Throttled(e.guest.PID)
	w.gaps.set(inventory.CPUUnmeasured, e.object, "the quota of its vCPUs", err)
	if len(files) != len(t.files) {
		t.known = false
	}
	t.Close()
	t.files = files
}

func (t *throttledSampler) Close() {
	for _, f := range t.files {
		f.Close()
	}
	t.files = nil
}

// since is how long the guest's vCPUs together were held back since the
// previous call.
func (t *throttledSampler) since() time.Duration {
	var sum uint64
	for _, f := range t.files {
		data, err := f.Read()
		if err != nil {
			t.known = false
			return 0 // the group is gone: the guest is ending, which its threads will show
		}
		micros, err := linux.ParseThrottled(data)
		if err != nil {
			t.known = false
			return 0
		}
		sum += micros
	}
	before, known := t.total, t.known
	t.total, t.known = sum, true
	if !known || sum < before {
		return 0
	}
	return time.Duration(sum-before) * time.Microsecond
}
