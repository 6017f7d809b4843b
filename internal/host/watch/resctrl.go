package watch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Resctrl measures guests' memory bandwidth by the processor's monitoring: one
// group for the vCPU threads of each guest, which counts the bytes between each
// L3 cache and memory, in all and to memory local to the cache.
type Resctrl struct {
	root  linux.Root
	cache *linux.FileCache
	open  func() (linux.Resctrl, error)

	resctrl  linux.Resctrl
	found    bool // resctrl is set, and the groups of an earlier run were removed
	topology *topology.Topology
	caches   map[int]topology.NodeSet // nodes of the CPUs that share an L3 cache, by the kernel's number of the cache
	cacheOf  map[topology.CPUID]int
	groups   map[int]*resctrlGroup // by PID
}

// resctrlGroup is one guest's monitoring.
type resctrlGroup struct {
	guest   inventory.Guest
	monitor *linux.Monitor
	threads []int // in the group
	domains []resctrlDomain
	silent  int           // readings without a figure, in a row
	since   time.Duration // the last figure
	gaveUp  error         // not nil: Read has given the guest up
}

type resctrlDomain struct {
	linux.MonitorDomain
	node         topology.NodeID
	total, local uint64 // last readings
	read         bool   // total and local are valid
	active       bool   // a vCPU was there at the last reading
}

// maxSilent is how many readings in a row may return no figure.
const maxSilent = 10

// NewResctrl makes the meter. It opens resctrl when it is first asked to follow
// guests, and tries again at each later call until it succeeds.
func NewResctrl(root linux.Root) *Resctrl {
	return &Resctrl{
		root: root, cache: root.NewFileCache(maxOpenFiles / 2), open: root.Resctrl, groups: map[int]*resctrlGroup{},
	}
}

// Source is inventory.AccessResctrl.
func (r *Resctrl) Source() inventory.AccessSource { return inventory.AccessResctrl }

// Follow makes groups for new guests, updates those of others, and removes
// those of guests that have ended.
func (r *Resctrl) Follow(guests []inventory.Guest, t *topology.Topology) error {
	if err := r.find(t); err != nil {
		return err
	}
	var errs []error
	for pid, group := range r.groups {
		if !slices.ContainsFunc(guests, func(g inventory.Guest) bool { return g.PID == pid }) {
			errs = append(errs, group.remove())
			delete(r.groups, pid)
		}
	}
	var refused []string
	for _, g := range guests {
		group := r.groups[g.PID]
		if group == nil {
			group = &resctrlGroup{}
			r.groups[g.PID] = group
		}
		group.guest = g
		if err := r.follow(group); err != nil {
			refused = append(refused, g.Name)
			if len(refused) == 1 { // the others have the same reason, or report theirs when this is fixed
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &UnmeteredError{refused, err}
	}
	return nil
}

// find opens resctrl, removes the groups of an earlier run, and learns which
// nodes each cache serves.
func (r *Resctrl) find(t *topology.Topology) error {
	if !r.found {
		resctrl, err := r.open()
		if err != nil {
			return err
		}
		if err := resctrl.RemoveStale(); err != nil {
			return err
		}
		r.resctrl, r.found = resctrl, true
	}
	if t == r.topology {
		return nil
	}
	caches, cacheOf := map[int]topology.NodeSet{}, map[topology.CPUID]int{}
	ids := map[topology.L3ID]int{}
	for _, c := range t.CPUs {
		id, known := ids[c.L3]
		if !known || c.L3 < 0 {
			var err error
			if id, err = r.root.CacheID(c.ID); err != nil {
				return err
			}
			ids[c.L3] = id
		}
		cacheOf[c.ID] = id
		caches[id] = caches[id].With(c.Node)
	}
	r.caches, r.cacheOf, r.topology = caches, cacheOf, t
	return nil
}

// follow makes sure that all vCPU threads of a guest are monitored.
func (r *Resctrl) follow(group *resctrlGroup) error {
	if group.gaveUp != nil {
		return group.gaveUp
	}
	threads := group.guest.Seen.Threads
	if len(threads) == 0 {
		return errors.New("its vCPU threads are unknown")
	}
	if group.monitor == nil {
		if err := r.begin(group, threads[0].TID); err != nil {
			return err
		}
	}
	var added []int
	for _, t := range threads {
		added = append(added, t.TID)
		if slices.Contains(group.threads, t.TID) {
			continue
		}
		if err := group.monitor.Add(t.TID); err != nil && !vanished(err) {
			return errors.Join(err, group.remove())
		}
	}
	group.threads = added
	return nil
}

// begin makes the group of a guest, within the control group of its vCPUs
// (libvirt's cachetune and memorytune). It leaves threads alone that another
// program monitors.
func (r *Resctrl) begin(group *resctrlGroup, tid int) error {
	control, monitor, err := r.resctrl.GroupsOf(tid)
	if err != nil {
		return err
	}
	if monitor != "" && !r.resctrl.Ours(monitor) {
		return fmt.Errorf("its vCPUs are in the monitoring group %q of another program (libvirt's <monitor>)", monitor)
	}
	m, err := r.resctrl.Monitor(r.cache, control, group.guest.PID)
	if err != nil {
		return err
	}
	group.monitor, group.domains, group.threads, group.since = m, nil, nil, 0
	for _, d := range m.Domains {
		node, err := r.nodeOf(d)
		if err != nil {
			return errors.Join(err, group.remove())
		}
		group.domains = append(group.domains, resctrlDomain{MonitorDomain: d, node: node, active: true})
	}
	return nil
}

// nodeOf is the node whose memory is local to a domain.
func (r *Resctrl) nodeOf(d linux.MonitorDomain) (topology.NodeID, error) {
	if d.Node != topology.NoNode {
		return d.Node, nil
	}
	nodes, ok := r.caches[d.Cache]
	if !ok {
		return 0, fmt.Errorf("no online CPU has the L3 cache %d that resctrl reports", d.Cache)
	}
	if node, _ := nodes.First(); nodes.Len() == 1 {
		return node, nil
	}
	return 0, fmt.Errorf(
		"the L3 cache %d serves nodes %s: memory that resctrl calls local may be on any of them "+
			"(Linux 6.11 divides it by "+
			"node)",
		d.Cache,
		nodes,
	)
}

// Read returns the bandwidth of each guest by node, where the kernel reports
// it.
func (r *Resctrl) Read(window time.Duration) (map[string]Access, error) {
	accesses := make(map[string]Access, len(r.groups))
	var errs []error
	for _, group := range r.groups {
		if group.monitor == nil || group.gaveUp != nil {
			continue
		}
		group.since += window
		a, ok, err := r.read(group, group.since)
		switch {
		case errors.Is(err, linux.ErrNoBandwidth):
			if group.silent++; group.silent >= maxSilent {
				group.gaveUp = errors.Join(err, group.remove())
				errs = append(errs, fmt.Errorf("VM %s: %w", group.guest.Name, group.gaveUp))
			}
		case err != nil: // resctrl was unmounted, or another program removed our group: try again
			errs = append(errs, fmt.Errorf("VM %s: %w", group.guest.Name, errors.Join(err, group.remove())))
		default:
			group.silent, group.since = 0, 0
			if ok {
				accesses[group.guest.Name] = a
			}
		}
	}
	return accesses, errors.Join(errs...)
}

// read measures one guest; ok is false at the first reading. Each reading of a
// domain interrupts one of its CPUs: so read reads only domains with vCPUs of
// the guest now or at the last reading, since the others have no traffic of
// its.
func (r *Resctrl) read(group *resctrlGroup, window time.Duration) (a Access, ok bool, err error) {
	active := map[int]bool{}
	for _, t := range group.guest.Seen.Threads {
		if cache, known := r.cacheOf[t.LastCPU]; known {
			active[cache] = true
		}
	}
	traffic := map[inventory.AccessShare]float64{} // bytes by from and to; Share is 0
	for i := range group.domains {
		d := &group.domains[i]
		was := d.active
		if d.active = active[d.Cache]; !was && !d.active {
			ok = ok || d.read
			continue
		}
		total, local, err := d.since()
		if err != nil {
			d.active = true
			return a, false, err
		}
		if total < 0 {
			continue // from now on
		}
		ok = true
		traffic[inventory.AccessShare{From: d.node, To: d.node}] += local
		traffic[inventory.AccessShare{From: d.node, To: topology.NoNode}] += total - local
	}
	return AccessOf(traffic, window), ok, nil
}

// since reads a domain and returns the bytes since the previous reading; -1 at
// the first.
func (d *resctrlDomain) since() (total, local float64, err error) {
	t, err := bandwidth(d.Total)
	if err != nil {
		return 0, 0, err
	}
	l, err := bandwidth(d.Local)
	if err != nil {
		return 0, 0, err
	}
	total, local = float64(t-min(t, d.total)), float64(l-min(l, d.local))
	first := !d.read
	d.total, d.local, d.read = t, l, true
	if first {
		return -1, 0, nil
	}
	// The two are read one after the other: local may be ahead by the traffic in between.
	return max(total, local), local, nil
}

func bandwidth(f *linux.CachedFile) (uint64, error) {
	data, err := f.Read()
	if err != nil {
		return 0, err
	}
	return linux.ParseBandwidth(data)
}

// remove ends the monitoring of a guest. A thread that ended left the group by
// itself.
func (g *resctrlGroup) remove() error {
	if g.monitor == nil {
		return nil
	}
	err := g.monitor.Remove()
	g.monitor, g.domains, g.threads = nil, nil, nil
	return err
}

// Close removes all groups.
func (r *Resctrl) Close() error {
	var errs []error
	for _, group := range r.groups {
		errs = append(errs, group.remove())
	}
	clear(r.groups)
	return errors.Join(errs...)
}

// AccessOf turns amounts by from and to (whose Share is left at 0) into an
// Access. They are bytes, or with window 0, any unit: then it reports no
// traffic.
func AccessOf(amounts map[inventory.AccessShare]float64, window time.Duration) Access {
	var a Access
	var sum float64
	for _, amount := range amounts {
		sum += amount
	}
	if sum <= 0 {
		return a
	}
	for at, amount := range amounts {
		if amount > 0 {
			at.Share = amount / sum
			a.Shares = append(a.Shares, at)
		}
	}
	sortShares(a.Shares)
	a.Remote = RemoteOf(a.Shares)
	if window > 0 {
		const mega = 1e6
		a.MemoryMBps = sum / mega / window.Seconds()
	}
	return a
}
