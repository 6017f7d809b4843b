package peers

import (
	"fmt"
	"slices"
	"strings"
)

// Manager is a way to manage NUMA on a host.
type Manager struct {
	Name  string
	About string
	// balancing is the kernel's automatic NUMA balancing.
	balancing bool
	// worstStart: the guests begin with their memory where the layout starts it,
	// and their vCPUs elsewhere. A guest that is created in the midst of a run has
	// no such limits: the manager, which works already, would have to follow them.
	worstStart bool
	// oneByOne: each guest has filled its memory before the next is started. Else
	// they are started at once, as at the boot of a host; where limits say where
	// each goes, that makes no difference.
	oneByOne bool
	// placement is libvirt's for vCPUs, tuning its elements for a guest.
	placement string
	tuning    func(Layout, int) string
	// Scripts: before the guests are started; after one with a worst-case start
	// was created ($1 its name, $2 the process); after the limits of its worst-case start are gone
	// (alike); when all that are there at the beginning are ready, before they
	// work (names of all guests, also of those that come later); when they have
	// worked, to print the manager's log.
	before, created, released, ready, after string
}

// Names of the managers that the comparison mentions.
const (
	None      = "none"
	Kernel    = "kernel"
	Numad     = "numad"
	Auto      = "auto"
	AutoMass  = "auto-mass"
	Numavisor = "numavisor"
	Baseline  = "baseline"
	Default   = "default"
)

// Managers returns all, in the order in which they run.
func Managers() []Manager {
	advised := func(Layout, int) string { return "<numatune><memory mode='strict' placement='auto'/></numatune>" }
	return []Manager{
		{Name: None, About: "no binding, worst-case start", worstStart: true},
		{Name: Kernel, About: "kernel.numa_balancing=1, worst-case start", worstStart: true, balancing: true},
		{Name: Numad, About: "numad -i 5, started before the guests, worst-case start", worstStart: true,
			before: startNumad,
			// Not before the worst-case start is complete: otherwise numad binds a guest in
			// vain while limits still restrict it, and leaves it there for minutes.
			created: "numad -x $2", released: "numad -r $2", after: "grep -E 'Advising|PID' /var/log/numad.log | " +
				"tail -60"},
		// numad -w does not see memory that guests have not touched yet, but what their boots use of CPUs.
		{
			Name:      Auto,
			About:     "libvirt's placement='auto' (numad -w), memory strict, guests started one after the other",
			placement: "auto",
			tuning:    advised,
			oneByOne:  true,
		},
		{Name: AutoMass, About: "the same, guests started at once", placement: "auto", tuning: advised},
		{
			Name:       Numavisor,
			About:      "numavisor daemon, balance auto, worst-case start",
			worstStart: true,
			ready:      startDaemon,
			after:      stopDaemon,
		},
		{Name: Baseline, About: "pinned by hand, memory strict", tuning: Layout.byHand},
		{Name: Default, About: "no binding, libvirt's own start, guests started at once"},
	}
}

// FindManager returns a manager by its name.
func FindManager(name string) (Manager, error) {
	all := Managers()
	i := slices.IndexFunc(all, func(m Manager) bool { return m.Name == name })
	if i < 0 {
		var names []string
		for _, m := range all {
			names = append(names, m.Name)
		}
		return Manager{}, fmt.Errorf("manager %q: allowed are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// numad scans every five seconds, and gets two scans to settle. It takes a
// process for bound a moment ago until the host has been up for five minutes
// (numad.c, manage_loads: 0 is when it was bound), so its clock is put forward.
const startNumad = `unshare --time --monotonic 600 --fork numad -l 6 -i 5 && sleep 12 && pgrep -x numad >/dev/null || { echo "numad does not run" >&2; exit 1; }`

// startDaemon leaves a daemon behind that outlives the script, when it answers.
// It samples every four seconds, not every second: an emulated CPU is some thirty
// times slower than a real one, and the daemon's CPU time is lost to the VMs,
// because all CPUs of the lab share two real ones. It still sees VMs that begin to work
// within half a second, by their CPU time. For the same reason an idle VM uses
// up to 0.16 of an emulated CPU, more than the default of min_cpu_demand. Kernel
// balancing does not wait, so the daemon moves VMs early.
const startDaemon = `{ printf 'balance:\n  mode: auto\n  degraded_for: 500ms\n  min_cpu_demand: 0.3\n  guests:\n'; for g; do echo "    $g: auto"; done; } > /run/bench-policy.yaml
setsid numavisor daemon --verbose --every 4s --policy /run/bench-policy.yaml > /run/bench-daemon.log 2>&1 &
echo $! > /run/bench-daemon.pid
for i in $(seq 60); do [ -S /run/numavisor/daemon.sock ] && exit; kill -0 $(cat /run/bench-daemon.pid) || break; sleep 0.5; done
cat /run/bench-daemon.log >&2; exit 1`

// stopDaemon ends the daemon first: a move that it stops is in the journal with its trace.
const stopDaemon = `awk '{printf "the daemon used %.1f s of CPUs, and %.1f s in the kernel\n", $14 / 100, $15 / 100}' \
	/proc/$(cat /run/bench-daemon.pid)/stat
kill $(cat /run/bench-daemon.pid)
for i in $(seq 20); do kill -0 $(cat /run/bench-daemon.pid) 2>/dev/null || break; sleep 0.5; done
numavisor history; numavisor history --timeline || true; tail -200 /run/bench-daemon.log`

// domain is a guest under this manager's control.
func (m Manager) domain(l Layout, guest int) string {
	placement, tuning := "static", ""
	if m.placement != "" {
		placement = m.placement
	}
	switch {
	case m.worstStart && l.VMs[guest].Created == 0:
		tuning = l.worstStart(guest)
	case m.tuning != nil:
		tuning = m.tuning(l, guest)
	}
	return l.domain(guest, placement, tuning)
}
