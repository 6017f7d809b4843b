package place

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// uneven searches the sets of k slots for a guest that no k slots hold in equal
// cells. The cells of a set are as even as its free resources allow, see divide; the
// best set is the one whose cells cost least. All sets are compared, except those
// that cannot hold the guest, until the steps are used up.
type uneven struct {
	p     *problem
	k     int
	units int // of memory to divide
	rooms []room
	// best is the key to beat, and found the answer with it.
	best  key
	found *solution
	steps int  // steps left
	cut   bool // the steps were used up

	set []int // positions in rooms, of the set under examination
}

// room is the largest cell that a slot can take.
type room struct {
	slot  slot
	vcpus int
	cores int // vCPUs up to which none shares a core, or overloads the node if that counts
	units int
}

// newUneven lists the slots that could take a part of a guest in k parts, the
// roomiest first.
func newUneven(p *problem, k int, beat key, steps int) *uneven {
	unit := max(p.spec.PageSize, smallUnit)
	u := &uneven{p: p, k: k, units: int(p.spec.Memory / unit), best: beat, steps: steps}
	if p.rooms == nil {
		p.rooms = p.listRooms(u.units, unit)
	}
	p.tabulateWays()
	u.rooms = p.rooms
	if p.spec.Binding.Mode != guest.MemoryInterleave {
		return u
	}
	// The kernel takes the same from every node, whatever the cells' sizes are.
	each := (p.spec.Memory + topology.Bytes(k) - 1) / topology.Bytes(k)
	u.rooms = nil
	for _, r := range p.rooms {
		if _, ok := p.fitMemory(&p.nodes[r.slot.mem], each); ok {
			r.units = u.units
			u.rooms = append(u.rooms, r)
		}
	}
	return u
}

// leastShortfall returns a lower bound of the shortfall of any k parts: the vCPUs
// beyond the cores of the k slots with the most.
func (u *uneven) leastShortfall() int {
	cores := make([]int, len(u.rooms))
	for i := range u.rooms {
		cores[i] = u.rooms[i].cores
	}
	slices.SortFunc(cores, func(a, b int) int { return cmp.Compare(b, a) })
	short := u.p.spec.VCPUs
	for _, n := range cores[:min(u.k, len(cores))] {
		short -= n
	}
	return max(0, short)
}

// listRooms measures all slots, for up to a number of units of memory.
func (p *problem) listRooms(units int, unit topology.Bytes) []room {
	rooms := make([]room, 0, len(p.slots))
	for _, s := range p.slots {
		r := room{slot: s, vcpus: p.mostVCPUs(&p.nodes[s.cpu]), units: min(units, p.mostUnits(&p.nodes[s.mem], unit))}
		r.cores = min(r.vcpus, p.coresFor(&p.nodes[s.cpu]), p.ample(&p.nodes[s.cpu]))
		if r.units > 0 {
			rooms = append(rooms, r)
		}
	}
	slices.SortStableFunc(rooms, func(a, b room) int {
		return cmp.Or(cmp.Compare(b.units, a.units), cmp.Compare(b.vcpus, a.vcpus))
	})
	return rooms
}

// mostVCPUs returns the number of vCPUs of the largest cell that fits on the node's CPUs.
func (p *problem) mostVCPUs(n *nodeState) int {
	low, high := 0, min(p.spec.VCPUs, n.cpus)
	for low < high {
		middle := (low + high + 1) / 2
		if p.carries(n, &demand{cellSize: cellSize{vcpus: middle, node: -1}}) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// carries reports whether the cell fits on the node's CPUs.
func (p *problem) carries(n *nodeState, d *demand) bool {
	if _, ok := p.fitCPUs(n, d); !ok {
		return false
	}
	_, ok := p.fitDemand(n, d)
	return ok
}

// mostUnits returns how much memory the node has for one guest, in units.
func (p *problem) mostUnits(n *nodeState, unit topology.Bytes) int {
	if p.spec.PageSize > 0 {
		return int(p.pages(n))
	}
	return int(n.room.Left / unit)
}

// run searches all sets that could hold the guest.
func (u *uneven) run() {
	if len(u.rooms) >= u.k {
		u.extend(0)
	}
}

// extend adds each slot from a position on to the set.
func (u *uneven) extend(from int) {
	u.steps--
	if len(u.set) == u.k {
		u.steps -= u.k * u.k / unevenStep
		u.examine()
		return
	}
	for i := from; i <= len(u.rooms)-(u.k-len(u.set)); i++ {
		if u.steps <= 0 {
			u.cut = true
			return
		}
		if u.p.anyFit && u.found != nil {
			return
		}
		if !u.enough(i) {
			return // the slots from here on are smaller
		}
		if !u.joins(i) {
			continue
		}
		u.set = append(u.set, i)
		u.extend(i + 1)
		u.set = u.set[:len(u.set)-1]
	}
}

// unevenStep is the number of prices of cells in slots that examining a set
// computes in the time of a step.
const unevenStep = 32

// enough reports whether the set has enough memory with the next slots from a
// position on, which have the most, and enough CPUs with any.
func (u *uneven) enough(from int) bool {
	vcpus, units := 0, 0
	for _, i := range u.set {
		vcpus, units = vcpus+u.rooms[i].vcpus, units+u.rooms[i].units
	}
	missing, most := u.k-len(u.set), 0
	for i := from; i < len(u.rooms); i++ {
		if i < from+missing {
			units += u.rooms[i].units
		}
		most = max(most, u.rooms[i].vcpus)
	}
	return units >= u.units && vcpus+missing*most >= u.p.spec.VCPUs
}

func (u *uneven) joins(i int) bool {
	for _, j := range u.set {
		if !u.p.together(u.rooms[i].slot, u.rooms[j].slot) {
			return false
		}
	}
	return true
}

// examine divides the guest over the set, and finds the cheapest choice of a slot
// of the set for each cell.
func (u *uneven) examine() {
	cells, homes, ok := u.divide()
	if !ok {
		return
	}
	slots := slices.SortedFunc(slices.Values(homes), compareSlots)
	if !u.p.keepsConditions(slots) {
		return
	}
	a := newArrangement(u.p, cells, slots)
	a.best, a.ties, a.steps = u.best, u.found != nil && before(slots, u.found.slots), &u.steps
	a.start(homes)
	if !u.p.anyFit {
		a.try()
	}
	u.cut = u.cut || a.cut
	if len(a.found) > 0 {
		a.sol.slots, a.sol.key = a.found, a.best
		u.best, u.found = a.best, a.sol
	}
}

// before reports whether a set of slots, in order, has lower positions than another.
func before(a, b []slot) bool {
	b = slices.SortedFunc(slices.Values(b), compareSlots)
	return slices.CompareFunc(a, b, compareSlots) < 0
}

func compareSlots(x, y slot) int {
	return cmp.Or(cmp.Compare(x.cpu, y.cpu), cmp.Compare(x.mem, y.mem))
}

// divide divides the guest over the slots of the set: vCPUs as evenly as the slots
// allow, on cores of their own where there are enough, and memory in proportion to
// the vCPUs. If the slots do not allow that proportion, memory that does not fit near
// its vCPUs goes to the other slots of the set; there may then be parts without vCPUs.
// homes are the slots that the cells were sized for. ok is false if the set cannot
// hold the guest or does not need all its slots.
func (u *uneven) divide() (cells []cellSize, homes []slot, ok bool) {
	s := &u.p.spec
	members := make([]room, u.k)
	for i, at := range u.set {
		members[i] = u.rooms[at]
	}
	u.reserveHelpers(members)
	vcpus, units, ok := u.inProportion(members)
	if !ok {
		vcpus, units, ok = u.apart(members)
	}
	if ok && s.Binding.Mode == guest.MemoryInterleave && slices.Contains(units, 0) {
		units, _ = level(u.units, slices.Repeat([]int{u.units}, u.k), make([]int, u.k)) // as the kernel spreads it
	}
	if !ok || slices.Contains(units, 0) || u.p.tears(slices.Min(vcpus), u.k) {
		return nil, nil, false
	}
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	// The first cell has the helpers' CPUs, which members[0] has.
	slices.SortStableFunc(order[1:], func(a, b int) int {
		return cmp.Or(cmp.Compare(vcpus[b], vcpus[a]), cmp.Compare(units[b], units[a]))
	})
	unit := max(s.PageSize, smallUnit)
	for _, i := range order {
		cells = append(cells, cellSize{vcpus: vcpus[i], memory: topology.Bytes(units[i]) * unit, node: -1})
		homes = append(homes, members[i].slot)
	}
	cells[0].memory += s.Memory % unit
	u.p.setTakes(cells)
	return cells, homes, true
}

// reserveHelpers puts the member with the most CPUs first, and takes the CPUs of
// helper threads from it.
func (u *uneven) reserveHelpers(members []room) {
	slices.SortStableFunc(members, func(a, b room) int {
		return cmp.Or(cmp.Compare(b.vcpus, a.vcpus), cmp.Compare(b.units, a.units), cmp.Compare(b.cores, a.cores))
	})
	helpers := u.p.helperCPUs()
	if helpers == 0 {
		return
	}
	n := &u.p.nodes[members[0].slot.cpu]
	for members[0].vcpus > 0 {
		d := demand{cellSize: cellSize{vcpus: members[0].vcpus, helpers: helpers, node: -1}}
		if u.p.carries(n, &d) {
			break
		}
		members[0].vcpus--
	}
	members[0].cores = min(members[0].cores, members[0].vcpus)
}

// inProportion gives each member whole vCPUs and the memory that belongs to them.
func (u *uneven) inProportion(members []room) (vcpus, units []int, ok bool) {
	total := u.p.spec.VCPUs
	most, cores := make([]int, len(members)), make([]int, len(members))
	for i, m := range members {
		most[i] = min(m.vcpus, m.units*total/u.units)
		cores[i] = min(most[i], m.cores)
	}
	vcpus, left := level(total, cores, make([]int, len(members)))
	if left > 0 {
		for i := range most {
			most[i] -= vcpus[i]
		}
		var more []int
		if more, left = level(left, most, vcpus); left > 0 {
			return nil, nil, false
		}
		for i := range more {
			vcpus[i] += more[i]
		}
	}
	units = make([]int, len(members))
	given := 0
	for i := range members {
		units[i] = vcpus[i] * u.units / total
		given += units[i]
	}
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	part := func(i int) int { return vcpus[i] * u.units % total }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(part(b), part(a)), cmp.Compare(vcpus[b], vcpus[a]))
	})
	for _, i := range order[:u.units-given] {
		units[i]++
	}
	return vcpus, units, true
}

// apart gives vCPUs to the members with the most memory that no vCPU uses yet,
// memory first to members with vCPUs, and the rest of it to the others.
func (u *uneven) apart(members []room) (vcpus, units []int, ok bool) {
	total := u.p.spec.VCPUs
	vcpus, units = make([]int, len(members)), make([]int, len(members))
	for range total {
		next := -1
		unused := func(i int) int { return members[i].units*total - vcpus[i]*u.units }
		for i, m := range members {
			if vcpus[i] < m.vcpus && (next < 0 || unused(i) > unused(next) ||
				unused(i) == unused(next) && vcpus[i] < vcpus[next]) {
				next = i
			}
		}
		if next < 0 {
			return nil, nil, false
		}
		vcpus[next]++
	}
	left := u.units
	near, far := make([]int, len(members)), make([]int, len(members))
	for i, m := range members {
		units[i] = min(m.units, vcpus[i]*u.units/total)
		left -= units[i]
		if vcpus[i] > 0 {
			near[i] = m.units - units[i]
		} else {
			far[i] = m.units
		}
	}
	for _, room := range [][]int{near, far} {
		var more []int
		more, left = level(left, room, units)
		for i := range more {
			units[i] += more[i]
		}
	}
	return vcpus, units, left == 0
}

// level divides an amount into parts as equal as their upper limits allow; left is
// what exceeds all limits. A remainder goes to the parts with the highest limits, and
// among these to those that have least.
func level(amount int, most, have []int) (parts []int, left int) {
	parts = make([]int, len(most))
	order := make([]int, len(most))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(most[a], most[b]), cmp.Compare(have[b], have[a]))
	})
	for n, i := range order { // the smallest first: what it cannot take is left to the others
		others := len(order) - n
		parts[i] = min(most[i], amount/others)
		amount -= parts[i]
	}
	return parts, amount
}

// arrangement chooses a slot of a small set for each cell of a solution.
type arrangement struct {
	p      *problem
	sol    *solution
	kind   []*demand // by cell
	slots  []slot
	single [][]key // by cell and slot
	rest   []key   // by cell: the least cost of this cell and those after it
	best   key
	ties   bool   // an answer with key best counts, too
	found  []slot // by cell

	at    []int // by cell: position in slots
	sum   key
	tried int
	steps *int // steps left
	cut   bool // the steps were used up
}

func newArrangement(p *problem, cells []cellSize, slots []slot) *arrangement {
	a := &arrangement{p: p, sol: &solution{cells: cells, kinds: p.kindsOf(cells)}, slots: slots}
	flat := make([]key, len(cells)*len(slots))
	for i := range cells {
		a.kind = append(a.kind, a.sol.demandOf(i))
		a.single, flat = append(a.single, flat[:len(slots)]), flat[len(slots):]
		prices := p.pricesOf(a.kind[i], len(cells))
		for j, s := range slots {
			a.single[i][j] = p.priceIn(prices, s, a.kind[i], len(cells))
		}
	}
	a.rest = make([]key, len(cells)+1)
	for i := len(cells) - 1; i >= 0; i-- {
		a.rest[i] = min(impossible, a.rest[i+1]+slices.Min(a.single[i]))
	}
	return a
}

// start takes the slots that the cells were sized for as the first answer.
func (a *arrangement) start(homes []slot) {
	sum := key(0)
	for i, s := range homes {
		sum = min(impossible, sum+a.single[i][slices.Index(a.slots, s)])
		for j, other := range homes[:i] {
			sum += key(a.p.between(s, a.kind[i], other, a.kind[j]))
		}
	}
	if sum < a.best || sum == a.best && a.ties {
		a.best, a.ties, a.found = sum, false, slices.Clone(homes)
	}
}

// arrangeStep is the number of choices that are examined in the time of a step.
const arrangeStep = 16

// try chooses slots for the cells that have none.
func (a *arrangement) try() {
	cell := len(a.at)
	if a.tried++; a.tried%arrangeStep == 0 {
		*a.steps--
	}
	if *a.steps < 0 {
		a.cut = true
		return
	}
	if low := a.sum + a.rest[cell]; low > a.best || low == a.best && !a.ties {
		return
	}
	if cell == len(a.kind) {
		a.best, a.ties, a.found = a.sum, false, a.found[:0]
		for _, i := range a.at {
			a.found = append(a.found, a.slots[i])
		}
		return
	}
	from := 0
	if cell > 0 && a.kind[cell] == a.kind[cell-1] {
		from = a.at[cell-1] + 1 // cells of one kind are interchangeable
	}
	for i := from; i < len(a.slots); i++ {
		more := a.single[cell][i]
		if more >= impossible || slices.Contains(a.at, i) {
			continue
		}
		for other, j := range a.at {
			more += key(a.p.between(a.slots[i], a.kind[cell], a.slots[j], a.kind[other]))
		}
		a.at, a.sum = append(a.at, i), a.sum+more
		a.try()
		a.at, a.sum = a.at[:cell], a.sum-more
	}
}
