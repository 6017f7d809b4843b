package watch

import (
	"errors"
	"io/fs"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// nodes measures the nodes of a host.
type nodes struct {
	stat, schedstat *linux.CachedFile
	each            []nodeSampler // ascending by node
	// From the sample before, by CPU; All 0 and Wait -1 where there was none.
	busy  []linux.CPUTime
	waits []time.Duration
	// Buffers for reading.
	times  []linux.CPUTime
	delays []linux.RunDelay
}

// nodeSampler measures one node.
type nodeSampler struct {
	id     topology.NodeID
	object inventory.Ref
	memory topology.Bytes
	free   *linux.CachedFile
	read   bool           // its memory has been read
	left   topology.Bytes // free memory as last published, or from the inventory
	pools  []poolSampler
	before []topology.HugePagePool // as last published
}

type poolSampler struct {
	size        topology.Bytes
	total, free *linux.CachedFile
}

func newNodes(k *linux.FileCache) *nodes {
	return &nodes{stat: k.File("proc/stat"), schedstat: k.Table("proc/schedstat")}
}

// follow changes to the nodes of a topology. Figures of CPUs stay: observations
// are frequent, and mostly find the same nodes.
func (n *nodes) follow(k *linux.FileCache, g *gaps, t *topology.Topology) {
	n.closeEach()
	for _, e := range n.each {
		g.forget(e.object)
	}
	n.each = nil
	for _, node := range t.Nodes {
		e := nodeSampler{id: node.ID, object: inventory.NodeRef(node.ID), memory: node.Memory, left: node.Free}
		if node.Memory > 0 {
			e.free = k.MemFree(node.ID)
		}
		for _, p := range node.HugePages {
			e.pools = append(e.pools,
				poolSampler{p.Size, k.PoolFigure(node.ID, p.Size, false), k.PoolFigure(node.ID, p.Size, true)})
		}
		n.each = append(n.each, e)
	}
}

func (n *nodes) Close() {
	n.stat.Close()
	n.schedstat.Close()
	n.closeEach()
}

func (n *nodes) closeEach() {
	for _, e := range n.each {
		e.free.Close()
		for _, p := range e.pools {
			p.total.Close()
			p.free.Close()
		}
	}
}

// sample measures all nodes.
func (n *nodes) sample(w *Watcher, window time.Duration) []inventory.NodeSample {
	samples := make([]inventory.NodeSample, len(n.each))
	at := make(map[topology.NodeID]*inventory.NodeSample, len(n.each))
	for i := range n.each {
		samples[i] = n.each[i].sample(&w.gaps, w.slow)
		at[n.each[i].id] = &samples[i]
	}
	w.gaps.set(inventory.CPUUnmeasured, inventory.HostRef(), "CPU use by node", n.addUse(w, at))
	err := n.addWaits(w, at, window)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New(
			"this kernel has no /proc/schedstat (CONFIG_SCHEDSTATS): only the waits of VMs' vCPUs are counted")
		addGuestWaits(w, at, window)
	}
	w.gaps.set(inventory.CPUUnmeasured, inventory.HostRef(), "run-queue wait by node", err)
	return samples
}

// sample returns the node's figures. Its memory is read if slow, or if it was not read yet.
func (e *nodeSampler) sample(g *gaps, slow bool) inventory.NodeSample {
	s := inventory.NodeSample{NodeLoad: inventory.NodeLoad{Node: e.id}, Memory: e.memory}
	if e.read && !slow {
		s.Free, s.HugePages = e.left, e.before
		return s
	}
	e.read = true
	if e.free != nil {
		data, err := e.free.Read()
		var free topology.Bytes
		if err == nil {
			free, err = linux.ParseMemFree(data)
		}
		if err == nil {
			e.left = free
		}
		g.set(inventory.MemoryUnread, e.object, "its free memory", err)
		s.Free = e.left
	}
	g.set(inventory.MemoryUnread, e.object, "its huge page pools", e.samplePools())
	s.HugePages = e.before
	return s
}

// samplePools updates before.
func (e *nodeSampler) samplePools() error {
	for i, p := range e.pools {
		total, err := count(p.total)
		if err != nil {
			return err
		}
		free, err := count(p.free)
		if err != nil {
			return err
		}
		now := topology.HugePagePool{Size: p.size, Total: total, Free: min(free, total)}
		if len(e.before) == len(e.pools) && e.before[i] == now {
			continue
		}
		fresh := make([]topology.HugePagePool, len(e.pools)) // the old one was published
		copy(fresh, e.before)
		fresh[i] = now
		e.before = fresh
	}
	return nil
}

func count(f *linux.CachedFile) (uint64, error) {
	data, err := f.Read()
	if err != nil {
		return 0, err
	}
	return linux.ParseCount(data)
}

// addUse counts the online CPUs of each node and adds their use.
func (n *nodes) addUse(w *Watcher, at map[topology.NodeID]*inventory.NodeSample) error {
	data, err := n.stat.Read()
	if err != nil {
		return err
	}
	n.times, err = linux.AppendCPUTimes(n.times[:0], data)
	for _, now := range n.times {
		for len(n.busy) <= int(now.CPU) {
			n.busy = append(n.busy, linux.CPUTime{})
		}
		before := n.busy[now.CPU]
		n.busy[now.CPU] = now
		s := at[w.node(now.CPU)]
		if s == nil {
			continue
		}
		s.CPUs++
		if before.All > 0 && now.All > before.All && now.Busy > before.Busy {
			s.CPU += min(1, float64(now.Busy-before.Busy)/float64(now.All-before.All))
		}
	}
	return err
}

// addWaits adds how many threads waited for a CPU of each node.
func (n *nodes) addWaits(w *Watcher, at map[topology.NodeID]*inventory.NodeSample, window time.Duration) error {
	data, err := n.schedstat.Read()
	if n.delays = n.delays[:0]; err == nil {
		n.delays, err = linux.AppendRunDelays(n.delays, data)
	}
	for _, now := range n.delays {
		for len(n.waits) <= int(now.CPU) {
			n.waits = append(n.waits, -1)
		}
		before := n.waits[now.CPU]
		n.waits[now.CPU] = now.Wait
		if s := at[w.node(now.CPU)]; s != nil && before >= 0 {
			s.Wait += share(now.Wait-before, window)
		}
	}
	if err != nil { // the next figures of the nodes not read would cover more than a window
		read := 0
		if last := len(n.delays) - 1; last >= 0 {
			read = int(n.delays[last].CPU) + 1
		}
		n.waits = n.waits[:min(read, len(n.waits))]
	}
	return err
}

// addGuestWaits adds the waits of guests' vCPUs to the nodes where they last
// ran.
func addGuestWaits(w *Watcher, at map[topology.NodeID]*inventory.NodeSample, window time.Duration) {
	for _, e := range w.guests {
		for i := range e.threads {
			t := &e.threads[i]
			if s := at[w.node(t.cpu)]; s != nil {
				s.Wait += share(t.waited, window)
			}
		}
	}
}

// share is the fraction of a window that a time fills; 0 if either is not
// positive.
func share(part, window time.Duration) float64 {
	if part <= 0 || window <= 0 {
		return 0
	}
	return float64(part) / float64(window)
}
