package xen

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// cpuSource is the source of CPU use and waits, for people.
const cpuSource = "xl vcpu-list: run times, and waits estimated from the states of vCPUs in the last minute"

// notReported is what Xen tells of no guest and of no node.
func notReported() []inventory.Gap {
	gap := func(what, why string) inventory.Gap {
		return inventory.Gap{Kind: inventory.NotReported, Object: inventory.HostRef(), What: what, Why: why}
	}
	return []inventory.Gap{
		gap("for how long vCPUs waited", "Xen does not report it; it is estimated from the states of vCPUs"),
		gap("accesses to memory and its traffic", "Xen has no meter; accesses are estimated from the placement"),
		gap("pressure (PSI)", "the control domain's kernel knows only its own"),
		gap("pages that the kernel moved", "Xen moves no memory of a running VM"),
	}
}

// figures computes a sample from readings: values in, values out.
type figures struct {
	guests   []inventory.Guest
	topology *topology.Topology
	window   time.Duration // of the sample
	free     map[topology.NodeID]topology.Bytes
	capped   map[int]bool // domains whose vCPUs may not use all of their CPUs' time: they wait for that, too
	readings []reading    // the oldest first; none: no current figures
	nodeOf   map[topology.CPUID]topology.NodeID
}

// fill adds nodes, guests and gaps to a sample.
func (f *figures) fill(s *inventory.Sample) {
	f.nodeOf = map[topology.CPUID]topology.NodeID{}
	for i := range f.topology.Nodes {
		n := &f.topology.Nodes[i]
		for c := range n.CPUs.All() {
			f.nodeOf[c] = n.ID
		}
		free, known := f.free[n.ID]
		if !known {
			free = n.Free
		}
		s.Nodes = append(s.Nodes, inventory.NodeSample{NodeLoad: inventory.NodeLoad{Node: n.ID}, CPUs: n.CPUs.Len(),
			Memory: n.Memory, Free: free})
	}
	s.Guests = make([]inventory.GuestSample, 0, len(f.guests))
	s.Unmeasured = len(f.readings) < 2
	for i := range f.guests {
		if g, there := f.guest(&f.guests[i]); there {
			s.Guests = append(s.Guests, g)
			s.Unmeasured = s.Unmeasured || f.fresh(&f.guests[i])
		}
	}
	slices.SortFunc(s.Guests, func(a, b inventory.GuestSample) int { return strings.Compare(a.Name, b.Name) })
	f.addNodes(s.Nodes)
	s.Accesses = []inventory.AccessSource{inventory.AccessEstimate}
	s.Gaps = notReported()
}

// use is what the vCPUs of a domain used between the last two readings, in CPUs, by the node of the CPU on which each
// last ran. ok is false if the domain is not in both readings.
func (f *figures) use(id int) (byNode map[topology.NodeID]float64, ok bool) {
	n := len(f.readings)
	if n < 2 {
		return nil, false
	}
	before, now := &f.readings[n-2], &f.readings[n-1]
	seconds := now.at.Sub(before.at).Seconds()
	was, ok := before.vcpus[id]
	if !ok || seconds <= 0 {
		return nil, false
	}
	byNode = map[topology.NodeID]float64{}
	for i, v := range now.vcpus[id] {
		node, known := f.nodeOf[topology.CPUID(v.CPU)]
		if i >= len(was) || !known {
			continue
		}
		if ran := (v.Run - was[i].Run).Seconds(); ran > 0 {
			byNode[node] += min(1, ran/seconds) // xl prints run times in tenths of a second
		}
	}
	return byNode, true
}

// fresh reports whether a guest has come since the reading before the last one.
func (f *figures) fresh(g *inventory.Guest) bool {
	id, err := strconv.Atoi(g.Run)
	if n := len(f.readings); err == nil && n >= 2 {
		return len(f.readings[n-1].vcpus[id]) > 0 && len(f.readings[n-2].vcpus[id]) == 0
	}
	return false
}

// guest measures one guest. there is false if the last reading does not have it: it has ended.
func (f *figures) guest(g *inventory.Guest) (s inventory.GuestSample, there bool) {
	s = inventory.GuestSample{Name: g.Name, MemoryByNode: g.Seen.MemoryByNode, MemorySource: g.Seen.MemorySource}
	id, err := strconv.Atoi(g.Run)
	if err != nil || len(f.readings) == 0 {
		return s, true
	}
	last := f.readings[len(f.readings)-1].vcpus[id]
	if len(last) == 0 {
		return s, false
	}
	at := map[topology.NodeID]float64{}
	for _, v := range last {
		if node, known := f.nodeOf[topology.CPUID(v.CPU)]; known {
			at[node]++
		}
	}
	byNode, ok := f.use(id)
	if ok {
		s.Load.Window, s.CPUByNode = f.window, byNode
		for _, used := range byNode {
			s.Load.CPU += used
		}
	}
	if s.Load.CPU > 0 { // vCPUs of a paused domain are neither running nor idle
		s.Load.Wait = max(0, min(f.waits(id)*float64(len(last)), float64(len(last))-s.Load.CPU))
		at = byNode
	}
	if s.Accesses = inventory.EstimateAccesses(at, s.MemoryByNode); len(s.Accesses) > 0 {
		s.Load.Remote = &inventory.Remote{Share: inventory.RemoteShare(s.Accesses), Source: inventory.AccessEstimate}
	}
	return s, true
}

// waits estimates the share of time in which the vCPUs of a domain waited for a CPU, from their states in all
// readings: the lower end of the range (leastShare) that the number of states allows, so that chance raises no alarm.
func (f *figures) waits(id int) float64 {
	if f.capped[id] {
		return 0
	}
	waited, seen := 0, 0
	for i := range f.readings {
		if f.readings[i].moved {
			continue
		}
		displaced := f.readings[i].displaced()
		for _, v := range f.readings[i].vcpus[id] {
			if v.CPU < 0 {
				continue
			}
			seen++
			if v.waits(displaced) {
				waited++
			}
		}
	}
	return leastShare(waited, seen)
}

// moved returns how many readings have states of another layout.
func (f *figures) moved() (n int) {
	for i := range f.readings {
		if f.readings[i].moved {
			n++
		}
	}
	return n
}

// waits reports whether the vCPU wants to run and does not.
func (v *vcpu) waits(displaced topology.CPUSet) bool {
	return v.CPU >= 0 && !v.Running && !v.Blocked && !displaced.Contains(topology.CPUID(v.CPU))
}

// displaced returns the CPUs on which the control domain runs: xl itself runs there, for the reading.
func (r *reading) displaced() (cpus topology.CPUSet) {
	for _, v := range r.vcpus[controlDomain] {
		if v.Running && v.CPU >= 0 {
			cpus = cpus.With(topology.CPUID(v.CPU))
		}
	}
	return cpus
}

// leastShare is the lower bound of Wilson's interval for a share of which some of a number of observations were
// counted, at one standard error:
//
//	(p + 1/2n - sqrt(p (1-p)/n + 1/4n^2)) / (1 + 1/n)
func leastShare(counted, of int) float64 {
	if of == 0 {
		return 0
	}
	n := float64(of)
	p := float64(counted) / n
	return max(0, (p+1/(2*n)-math.Sqrt(p*(1-p)/n+1/(4*n*n)))/(1+1/n))
}

// addNodes adds the CPU use and the waits of all domains, the control domain included, to their nodes.
func (f *figures) addNodes(nodes []inventory.NodeSample) {
	at := make(map[topology.NodeID]*inventory.NodeSample, len(nodes))
	for i := range nodes {
		at[nodes[i].Node] = &nodes[i]
	}
	if len(f.readings) == 0 {
		return
	}
	for id := range f.readings[len(f.readings)-1].vcpus {
		byNode, _ := f.use(id)
		for node, used := range byNode {
			at[node].CPU = min(float64(at[node].CPUs), at[node].CPU+used)
		}
		if len(byNode) == 0 || f.capped[id] {
			// vCPUs of a paused domain are neither running nor idle, and those of a capped one wait for its cap.
			continue
		}
		for i := range f.readings {
			if f.readings[i].moved {
				continue
			}
			displaced := f.readings[i].displaced()
			for _, v := range f.readings[i].vcpus[id] {
				if node, known := f.nodeOf[topology.CPUID(v.CPU)]; known && v.waits(displaced) {
					at[node].Wait += 1 / float64(len(f.readings)-f.moved())
				}
			}
		}
	}
}
