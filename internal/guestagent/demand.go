package guestagent

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// tick is the unit of /proc/stat: USER_HZ is 100 on all architectures that have KVM.
const tick = 10 * time.Millisecond

// meter measures demand.
type meter struct {
	k    kernel
	at   time.Time
	busy map[int]uint64 // ticks, by vCPU
	own  time.Duration  // for which the agent itself has run
	// stall is the total of PSI "some", in microseconds.
	stall uint64
	// threads are those that ran or waited at the last looks, the latest first; certain are the same without those for
	// which no vCPU was busy often enough.
	threads, certain []int64
	// occupied is the number of vCPUs that the last measurement found busy; -1: unknown. handed says that vCPUs have
	// changed hands since.
	occupied int64
	handed   bool
}

const (
	// recent is the number of looks that demand is of: they last longer than threads wait for each other
	// at a barrier, and end soon after the work.
	recent = 6
	// long is the number of looks that tell steady demand from what is brief, and frequent the number of those that
	// must find it: threads that meet at barriers all run or wait for half of the time, if they have half as many
	// vCPUs. Work of the kernel takes a tenth of the time, of a slow vCPU.
	long, frequent = 12, 5
	// occupies is the share of time from which on a vCPU counts as busy: that of the kernel's work and the agent's is
	// less, also when the vCPUs are slow.
	occupies = 0.25
	// manyMore is how many threads more than vCPUs are steady at once: the kernel seldom has more than one.
	manyMore = 2
)

// demand is what a report says of it; see guest.Report.
type demand struct {
	running, stalled int64
	use              string
	// by is the share of time in which each vCPU was busy.
	by map[int]float64
}

// runnable returns the number of threads that run or wait for a vCPU, without the
// agent's, which runs.
func (m *meter) runnable() (int64, bool) {
	text, err := m.k.read("/proc/loadavg")
	fields := strings.Fields(text)
	if err != nil || len(fields) < 4 {
		return 0, false
	}
	count, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(count, 10, 32)
	return max(0, n-1), err == nil
}

// note notes how many threads ran or waited at a look, and how many of them are certain to need vCPUs.
func (m *meter) note(threads, certain int64) {
	m.threads = append([]int64{threads}, m.threads[:min(len(m.threads), long-1)]...)
	m.certain = append([]int64{certain}, m.certain[:min(len(m.certain), long-1)]...)
}

// served notes threads that all have a vCPU. Threads of the kernel on parked vCPUs are among them, which take little
// time: only as many are certain as there are busy vCPUs.
func (m *meter) served(threads int64) {
	certain := threads
	if m.occupied >= 0 {
		certain = min(threads, m.occupied)
	}
	m.note(threads, certain)
}

// most is the number of threads that would have run at once, had there been vCPUs for them: the greatest
// that two of the last looks found. Their mean says less: the fewer vCPUs threads have that meet at barriers, the
// longer most of them wait for the last one, and need no vCPU meanwhile. -1: unknown.
func (m *meter) most() int64 {
	if len(m.threads) < 2 {
		return -1
	}
	sorted := slices.Sorted(slices.Values(m.threads[:min(len(m.threads), recent)]))
	return sorted[len(sorted)-2]
}

// rise notes that there are many more threads now: they count as if several looks had found them.
func (m *meter) rise(threads int64) {
	for range frequent {
		m.note(threads, threads)
	}
}

// steady is the number of threads that ran or waited often. -1: unknown.
func (m *meter) steady() int64 {
	if len(m.certain) < frequent {
		return -1
	}
	sorted := slices.Sorted(slices.Values(m.certain))
	return sorted[len(sorted)-frequent]
}

// mean returns the demand since the last call; the first call has no use yet.
func (m *meter) mean(now time.Time, present guest.VCPUs) (demand, error) {
	busy, err := m.ticks()
	if err != nil {
		return demand{}, err
	}
	d := demand{stalled: -1, by: map[int]float64{}}
	elapsed := now.Sub(m.at)
	stall, psi := m.stalls()
	own := m.k.ownTime()
	if m.busy != nil && elapsed > 0 {
		for id, t := range busy {
			if old, ok := m.busy[id]; ok && t >= old {
				d.by[id] = min(1, float64(t-old)*float64(tick)/float64(elapsed))
				d.running += int64(1000 * d.by[id])
			}
		}
		// What the agent itself takes is no demand: else the work of a hand-over would cause the next one.
		d.running = max(0, d.running-int64(1000*float64(own-m.own)/float64(elapsed)))
		if psi && stall >= m.stall {
			d.stalled = min(1000, int64(1000*float64(stall-m.stall)/float64(elapsed.Microseconds())))
		}
	}
	m.occupy(d.by)
	ids := present.IDs()
	if last := ids[len(ids)-1]; last < guest.MaxUse {
		digits := make([]byte, last+1)
		for id := range digits {
			digits[id] = '0' + byte(min(9, 10*d.by[id]))
		}
		d.use = string(digits)
	}
	m.at, m.busy, m.own, m.stall = now, busy, own, stall
	return d, nil
}

// occupy counts the busy vCPUs of a measurement. While vCPUs change hands, threads run on more of them than they need.
func (m *meter) occupy(by map[int]float64) {
	m.occupied = -1
	if m.busy != nil && !m.handed {
		m.occupied = 0
		for _, share := range by {
			if share >= occupies {
				m.occupied++
			}
		}
	}
	m.handed = false
}

// ticks reads from /proc/stat how long each vCPU executed something. Stolen time is
// none of that.
func (m *meter) ticks() (map[int]uint64, error) {
	text, err := m.k.read("/proc/stat")
	if err != nil {
		return nil, err
	}
	busy := map[int]uint64{}
	for line := range strings.SplitSeq(text, "\n") {
		// user nice system idle iowait irq softirq steal
		if id, f, ok := cpuLine(line); ok && len(f) >= 7 {
			busy[id] = f[0] + f[1] + f[2] + f[5] + f[6]
		}
	}
	return busy, nil
}

func (m *meter) stalls() (uint64, bool) {
	text, err := m.k.read(pressureFile)
	if err != nil {
		return 0, false
	}
	some, _, _ := strings.Cut(text, "\n")
	_, total, ok := strings.Cut(some, "total=")
	n, err := strconv.ParseUint(total, 10, 64)
	return n, ok && err == nil
}

// cpuLine reads a line of /proc/stat or /proc/schedstat: "cpu7 1 2 3".
func cpuLine(line string) (id int, figures []uint64, ok bool) {
	rest, ok := strings.CutPrefix(line, "cpu")
	name, rest, _ := strings.Cut(rest, " ")
	id, err := strconv.Atoi(name)
	if !ok || err != nil || id < 0 {
		return 0, nil, false
	}
	for f := range strings.FieldsSeq(rest) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, nil, false
		}
		figures = append(figures, n)
	}
	return id, figures, true
}
