package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/topology"
)

// loads has the loads of all hosts: of those that are connected to this server, and those that the other
// servers relay. They are only in memory: a server that starts has all of them after a few seconds.
type loads struct {
	mu   sync.Mutex
	by   map[string]*hostLoad
	last uint64 // counts the messages of hosts
}

func newLoads() *loads { return &loads{by: map[string]*hostLoad{}} }

// of returns the load of a host, which does not change any more; nil if it is not known.
func (l *loads) of(host string) *hostLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[host]
}

// recent returns the load of a host that this server has heard of lately; nil: it has not.
func (l *loads) recent(host string) *hostLoad {
	if at := l.of(host); at != nil && time.Since(at.heard) < recentLoads {
		return at
	}
	return nil
}

// recentLoads is for how long a load says something about the present.
const recentLoads = time.Minute

// take merges a message. full says that the daemon must send all loads.
func (l *loads) take(host string, m *fleet.Loads) (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, ok := l.by[host].merged(m)
	if ok {
		next.heard = time.Now() // monotonic: a jump of the clock does not count
		l.last++
		next.change = l.last
		l.by[host] = next
	}
	return !ok
}

// put takes what another server relays. It is not relayed again.
func (l *loads) put(host string, m *fleet.Loads) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, _ := (*hostLoad)(nil).merged(m)
	next.heard = time.Now()
	l.by[host] = next
}

// since returns the loads of at most `most` hosts that have reported after a message, oldest first, and
// the number of the last one; more says whether there are others.
func (l *loads) since(change uint64, most int) (out relayed, last uint64, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for host, load := range l.by {
		if load.change > change {
			names = append(names, host)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(l.by[a].change, l.by[b].change) })
	out.Hosts, last = map[string]fleet.Loads{}, change
	for _, host := range names[:min(len(names), most)] {
		out.Hosts[host], last = l.by[host].complete(), l.by[host].change
	}
	return out, last, len(names) > most
}

func (l *loads) forget(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, host)
}

// record adds a sample of a host to the telemetry, if one is due: its loads, and the nodes of its VMs.
func (s *Server) record(ctx context.Context, host string, taken time.Time) {
	if s.Telemetry == nil || !s.Telemetry.Due(host, taken) {
		return
	}
	l := s.loads.of(host)
	if l == nil {
		return // it was removed meanwhile
	}
	if err := s.Telemetry.Report(ctx, host, l.complete(), s.placedOn(host)); err != nil {
		s.Log.Warn("the loads of a host were not stored", "host", host, "error", err)
	}
}

// placedOn returns the nodes of the VMs of a host.
func (s *Server) placedOn(host string) map[string]topology.NodeSet {
	out := map[string]topology.NodeSet{}
	s.cache.read(func(st *state) {
		for name := range st.on[host] {
			if r := st.vms[name]; r.host == host {
				out[name] = r.placement.Nodes
			}
		}
	})
	return out
}

// Bounds of a message of loads. No host has more.
const (
	maxNodes  = 4096
	maxVMs    = 20000
	maxAlarms = 1000
)

// validLoads refuses impossible figures.
func validLoads(m *fleet.Loads) error {
	switch {
	case m.Number == 0 || m.Since >= m.Number:
		return errors.New("number: must be greater than since, and positive")
	case len(m.Nodes) > maxNodes || len(m.VMs) > maxVMs || len(m.Gone) > maxVMs || len(m.Alarms) > maxAlarms ||
		len(m.Lasting) > maxAlarms:
		return errors.New("more nodes, VMs or alarms than any host has")
	}
	for i := range m.Nodes {
		if !m.Nodes[i].IsValid() {
			return errors.New("nodes: an impossible load")
		}
	}
	for i := range m.VMs {
		v := &m.VMs[i]
		if v.Name == "" || len(v.Name) > 240 || !v.IsValid() || v.LocalShare != nil && !(*v.LocalShare >= 0 &&
			*v.LocalShare <= 1) {
			return errors.New("vms: an impossible load, or no name")
		}
	}
	for i := range m.Lasting {
		a := &m.Lasting[i]
		if a.Severity != alarm.Warning && a.Severity != alarm.Critical || len(a.Quantity) > 100 ||
			len(a.Why) > 4000 || len(a.Guests) > maxAlarms {
			return errors.New("lasting_alarms: an impossible alarm")
		}
	}
	for kind, n := range m.Alarms {
		if n < 0 || kind == "" || len(kind) > 100 {
			return errors.New("alarms: an impossible number or kind")
		}
	}
	return nil
}
