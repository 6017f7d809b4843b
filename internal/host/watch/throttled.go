package watch

import (
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
)

// throttledEye tells how long a guest was held back by its own quota of CPU
// time. That is no waiting for a CPU: it would be held back on any other, too.
type throttledEye struct {
	files []*linux.Kept // cpu.stat of its groups that have a quota
	total uint64        // microseconds, of all of them together, as read before
	known bool
}

// find looks which of the guest's groups have a quota now.
func (t *throttledEye) find(w *Watcher, e *guestEye) {
	files, err := w.keeper.Throttled(e.guest.PID)
	w.gaps.set(inventory.CPUUnmeasured, e.object, "the quota of its vCPUs", err)
	if len(files) != len(t.files) {
		t.known = false
	}
	t.Close()
	t.files = files
}

func (t *throttledEye) Close() {
	for _, f := range t.files {
		f.Close()
	}
	t.files = nil
}

// since is for how long the guest's vCPUs together were held back since the call before.
func (t *throttledEye) since() time.Duration {
	var sum uint64
	for _, f := range t.files {
		data, err := f.Read()
		if err != nil {
			t.known = false
			return 0 // the group has gone: the guest ends, and is found to
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
