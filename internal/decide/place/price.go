package place

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
)

// A key holds the three figures of the objective in one number, so that keys
// add up and compare like the figures: shortfall (of cores or CPUs), nodes, cost.
type key = int64

const (
	nodesBit   = 36 // costs stay below 2^35 either way, see package cost
	sharingBit = 46 // up to 1024 nodes
	// impossible is above every key of a guest of up to 2047 vCPUs, and 8 of it can be
	// added up.
	impossible key = 1 << 59
)

func costOf(k key) cost.Micro {
	return cost.Micro(k - (k+1<<(nodesBit-1))>>nodesBit<<nodesBit)
}

// headOf returns the first two figures of a key, which decide before the cost does.
func headOf(k key) key { return (k + 1<<(nodesBit-1)) >> nodesBit }

// shortfallOf returns the first figure of a key.
func shortfallOf(k key) int { return int((k + 1<<(nodesBit-1)) >> sharingBit) }

// nodeCountOf returns the second figure of a key.
func nodeCountOf(k key) int {
	return int((k+1<<(nodesBit-1))>>nodesBit) & (1<<(sharingBit-nodesBit) - 1)
}

// terms values the cell by itself: all terms except the access between cells,
// weighted, for a guest of the given number of cells.
func (p *problem) terms(s slot, d *demand, cells int) cost.Terms {
	var t cost.Terms
	run, mem := &p.nodes[s.cpu], &p.nodes[s.mem]
	l := &p.list
	own := d.cpuShare * d.memoryShare
	t[cost.Latency] = l.Price(cost.Latency, own*(p.access.Latency(s.cpu, s.mem)-1))
	t[cost.Bandwidth] = l.Price(cost.Bandwidth,
		own*(p.access.Bandwidth(s.cpu, s.mem)-1)+d.memoryShare*cost.Contention(mem.busy))

	cpus := d.vcpus + d.helpers
	if p.spec.CPU.Binding == guest.CPUExclusive {
		k, _ := p.pickFor(run, d)
		cpus = k.count()
		t[cost.Cache] = l.Price(cost.Cache, d.cpuShare*float64(max(0, k.caches-1)))
	}
	each := 1 / float64(cells)
	demand, memory := run.demand(cpus), mem.use(0, d.take).Memory
	t[cost.Load] = l.Price(cost.Load,
		p.spreading(demand)*(d.cpuShare*l.CPULoad(demand)+d.memoryShare*l.MemoryLoad(memory))/2)
	if s.whole() {
		after := run.use(cpus, d.take)
		t[cost.Stranding] = l.Price(cost.Stranding, each*cost.StrandingGrowth(run.before, after))
		t[cost.WideRoom] = l.Price(cost.WideRoom, p.roomLost(run, after))
	}
	far := 0.0
	for _, at := range p.devices {
		far += p.deviceLatency(at, s.mem) - 1
	}
	t[cost.Devices] = l.Price(cost.Devices, d.memoryShare*far)
	if missing := p.growth(mem, d.take); missing > 0 {
		asked := float64(d.take / p.spec.PageSize)
		t[cost.Growth] = l.Price(cost.Growth, d.memoryShare*float64(missing)/asked)
	}
	return t
}

// deviceLatency is the way from a device's node to memory; without a figure, the
// longest known way counts.
func (p *problem) deviceLatency(device, mem int) float64 {
	if l := p.access.Latency(device, mem); l > 0 {
		return l
	}
	worst := 1.0
	for i := range p.nodes {
		worst = max(worst, p.access.Latency(i, mem))
	}
	return worst
}

// single is the key of one cell in one slot; impossible where it does not fit.
func (p *problem) single(s slot, d *demand, cells int) key {
	if _, ok := p.fit(s, d); !ok {
		return impossible
	}
	t := p.terms(s, d, cells)
	return key(p.shortfall(&p.nodes[s.cpu], d, cells))<<sharingBit + key(s.nodeCount())<<nodesBit + key(t.Sum())
}

// way is the weighted price of access to memory of slot b from CPUs of slot a, for
// a guest with no other accesses.
func (p *problem) way(a, b slot) cost.Micro {
	if p.ways != nil {
		return p.ways[a.cpu*len(p.nodes)+b.mem]
	}
	return p.wayLatency(a, b) + p.wayBandwidth(a, b)
}

// tabulateWays computes all ways once: uneven cells are arranged on many sets of slots.
func (p *problem) tabulateWays() {
	if p.ways != nil {
		return
	}
	ways := make([]cost.Micro, 0, len(p.nodes)*len(p.nodes))
	for a := range p.nodes {
		for b := range p.nodes {
			ways = append(ways, p.way(slot{a, a}, slot{b, b}))
		}
	}
	p.ways = ways
}

// partSize is a size of a cell in a division into a number of cells.
type partSize struct {
	cellSize
	cells int
}

// unpriced marks a key that was not computed yet.
const unpriced key = -1 << 62

// pricesOf returns the table of the keys of a cell by slot, see priceIn. Cells of the same
// size occur in most sets of slots.
func (p *problem) pricesOf(d *demand, cells int) []key {
	size := partSize{d.cellSize, cells}
	table, known := p.priced[size]
	if !known {
		if p.priced == nil {
			p.priced = map[partSize][]key{}
		}
		table = slices.Repeat([]key{unpriced}, len(p.nodes)*len(p.nodes))
		p.priced[size] = table
	}
	return table
}

// priceIn is single, computed once for each entry of the table.
func (p *problem) priceIn(table []key, s slot, d *demand, cells int) key {
	at := &table[s.cpu*len(p.nodes)+s.mem]
	if *at == unpriced {
		*at = p.single(s, d, cells)
	}
	return *at
}

func (p *problem) wayLatency(a, b slot) cost.Micro {
	return p.list.Price(cost.Latency, p.access.Latency(a.cpu, b.mem)-1)
}

func (p *problem) wayBandwidth(a, b slot) cost.Micro {
	return p.list.Price(cost.Bandwidth, p.access.Bandwidth(a.cpu, b.mem)-1)
}

// shareBits is the precision of the share of all accesses that two cells make to each other.
const shareBits = 24

// traffic is the share of the guest's accesses from a cell of kind a to memory of one of kind b.
func traffic(a, b *demand) int64 {
	return int64(math.Round(a.cpuShare * b.memoryShare * (1 << shareBits)))
}

// between is the access cost of two cells, in both directions.
func (p *problem) between(a slot, da *demand, b slot, db *demand) cost.Micro {
	return cost.Micro((traffic(da, db)*int64(p.way(a, b)) + traffic(db, da)*int64(p.way(b, a))) >> shareBits)
}
