package linux

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Mover moves the pages of one process between nodes with move_pages(2), in
// chunks, so that it can be paced, watched and cancelled. The nodes must be
// in the cpusets of the process and of this program.
type Mover struct {
	PID int
	// Chunk is the amount that one call queries and moves; 0 is 64 MiB. Each
	// call disturbs every CPU of the host, so very small chunks cost more than
	// they move.
	Chunk topology.Bytes
	// Spread asks to fill the target nodes evenly (interleave), instead of only
	// moving in pages from other nodes.
	Spread bool
	// Quick tries again only as many pages together as make a call worth it, and
	// leaves the others. Each call makes all CPUs of the host drain their page
	// lists, which takes as long as copying some hundred pages or more.
	Quick bool
	// Threads is how many parts of a range of 32 MiB and more move at the same
	// time; 0 is 1.
	Threads int
	// CPUs returns the CPUs of some nodes: while pages move between nodes, the
	// calling thread runs on CPUs of these nodes. From a third node, each access of
	// the copy would go to another node, both to read and to write. Nil: anywhere.
	CPUs func(topology.NodeSet) topology.CPUSet
	// Pace is called with the bytes to copy before each chunk moves, and may
	// wait as long as necessary; nil is full speed.
	Pace func(ctx context.Context, bytes topology.Bytes) error
	// Progress is called after each chunk with the bytes of the range processed
	// so far; nil reports nothing.
	Progress func(done, total topology.Bytes)

	space addressSpace // nil: the process's own memory
}

// defaultChunk: tens of MiB keep the cost of a call small relative to its
// copying, and take a fraction of a second even where pages are small.
const defaultChunk = 64 * topology.MiB

// passes bounds how often a chunk's pages are tried. A page that is briefly in
// use (EBUSY) mostly moves on the second try.
const passes = 4

// MoveResult is the state of a range's pages, queried again after the move.
type MoveResult struct {
	// Before and After are memory per node, at the start and at the end.
	Before, After topology.MemoryByNode
	Moved         topology.Bytes // on another node than before
	Failed        topology.Bytes // on a wrong node after the move, or hidden
	Absent        topology.Bytes // no page there: not touched yet, or swapped out
	// Hidden is the part of Failed that move_pages(2) does not see.
	Hidden topology.Bytes
	// Why counts pages that failed by the kernel's reason: "EBUSY" in use or
	// pinned, "EACCES" shared with another process, "ENOMEM" no room on the
	// target, "EAGAIN" given up after other failures, "HIDDEN" not visible.
	Why map[string]uint64
}

// Move moves the pages of a mapping to the target nodes: to one, or evenly to
// several. Its result was queried after the move. On error the result covers
// the part processed until then; a *MoveError distinguishes a full or forbidden
// node (ENOMEM, EACCES) from an ended process (ESRCH).
func (m Mover) Move(ctx context.Context, r inventory.MemoryRange, targets topology.NodeSet) (MoveResult, error) {
	result := MoveResult{Before: topology.MemoryByNode{}, After: topology.MemoryByNode{}, Why: map[string]uint64{}}
	if targets.IsEmpty() {
		return result, fmt.Errorf("moving pages of process %d at %#x: no target node given", m.PID, r.Address)
	}
	if parts := m.divide(r); len(parts) > 1 {
		return m.moveTogether(ctx, parts, targets)
	}
	step := pageSizeOf(r)
	perChunk := uint64(max(m.chunk()/step, 1))
	total := uint64(r.Size / step)
	c := chunk{window: &window{pid: m.PID, space: m.memory(), step: step}, mover: m, targets: targets}
	for first := uint64(0); first < total; first += perChunk {
		pages := min(perChunk, total-first)
		c.slide(r.Address+first*uint64(step), int(pages))
		err := c.moveMisplaced(ctx)
		c.account(&result)
		if err != nil {
			return result, err
		}
		if m.Progress != nil {
			m.Progress(topology.Bytes(first+pages)*step, r.Size)
		}
	}
	return result, nil
}

func (m Mover) chunk() topology.Bytes {
	if m.Chunk == 0 {
		return defaultChunk
	}
	return m.Chunk
}

func (m Mover) memory() addressSpace {
	if m.space == nil {
		return process(m.PID)
	}
	return m.space
}

// chunk is the part of a range that is queried and moved together. One chunk
// value serves all parts in turn, with the same buffers.
type chunk struct {
	*window
	mover   Mover
	targets topology.NodeSet
	before  []int32 // statuses at first; empty: not queried yet
	wanted  []int32 // for each page its target node, or stay
	heads   []unit  // pages that may form one huge page and are to move
	reasons []int32 // answer to the last attempt to move each page

	misplaced []int // last result of left
	asked     struct {
		addresses       []uint64
		nodes, statuses []int32
	} // result of the last call
}

// moveMisplaced moves the misplaced pages, queries them again, and retries
// those that remain.
func (c *chunk) moveMisplaced(ctx context.Context) error {
	c.before, c.heads = c.before[:0], c.heads[:0]
	if err := ctx.Err(); err != nil {
		return c.stopped(err)
	}
	if err := c.queryAll(); err != nil {
		return err
	}
	c.choose()
	misplaced := topology.Bytes(len(c.left())) * c.step
	if misplaced == 0 {
		return nil
	}
	if c.mover.Pace != nil {
		if err := c.mover.Pace(ctx, misplaced); err != nil {
			return c.stopped(err)
		}
	}
	return c.near(func() error { return c.moveAllPasses(ctx) })
}

func (c *chunk) stopped(err error) error {
	return fmt.Errorf("moving pages of process %d at %#x: %w", c.pid, c.addresses[0], err)
}

// uncoverings bounds how often a query makes hidden pages visible. NUMA balancing hides up to 256 MiB at once, at most
// once a second for each thread of the process, and also while pages move.
const uncoverings = 3

// queryAll queries where the pages are. It makes hidden ones visible if it can.
func (c *chunk) queryAll() error {
	for tries := 0; ; tries++ {
		if err := c.query(); err != nil {
			return err
		}
		if err := c.findHidden(); err != nil {
			return err
		}
		if tries == uncoverings || c.uncover() == 0 {
			return nil
		}
	}
}

// choose decides from the query which pages move where.
func (c *chunk) choose() {
	c.before = append(c.before, c.statuses...)
	c.reasons, c.wanted = sized(c.reasons, len(c.statuses)), sized(c.wanted, len(c.statuses))
	clear(c.reasons)
	for i := range c.wanted {
		c.wanted[i] = stay
	}
	units := unitsOf(c.addresses, c.statuses, c.step)
	for i, to := range chooseMoves(units, c.targets, c.mover.Spread) {
		for k := units[i].first; k < units[i].first+units[i].pages; k++ {
			c.wanted[k] = to
		}
		if to != stay && units[i].pages > 1 {
			c.heads = append(c.heads, units[i])
		}
	}
}

// left lists the pages that should move and have not. The list is valid until
// the next call.
func (c *chunk) left() []int {
	index := sized(c.misplaced, len(c.wanted))[:0]
	for i, w := range c.wanted {
		if w != stay && c.statuses[i] >= 0 && c.statuses[i] != w {
			index = append(index, i)
		}
	}
	c.misplaced = index
	return index
}

// moveAllPasses moves pages until all are on their target, no further page
// moves, or the passes are used up. It first asks for one address of each
// stretch that may be one transparent huge page: if it is one, all of it moves
// with that address, and asking for its other addresses too would only break
// the kernel's batches.
func (c *chunk) moveAllPasses(ctx context.Context) error {
	if len(c.heads) > 0 {
		if err := c.tryHeads(); err != nil {
			return err
		}
	}
	left := c.left()
	for pass, pieces := 1, 1; pass <= passes && len(left) > 0; pass, pieces = pass+1, pieces*8 {
		if c.mover.Quick && pass > 1 {
			if pieces = min(pieces, len(left)/worthACall); pieces == 0 {
				return nil
			}
		}
		if err := ctx.Err(); err != nil {
			return c.stopped(err)
		}
		if err := c.try(left, pieces); err != nil {
			return err
		}
		before := len(left)
		if left = c.left(); len(left) == before && pass > 1 {
			return nil
		}
	}
	return nil
}

// worthACall is the number of pages for which Quick makes another call.
const worthACall = 256

// tryHeads asks for the first page of each unit. If the second page moved too,
// the unit is a huge page, and tryHeads queries all of it again; if not, the
// other pages have not moved.
func (c *chunk) tryHeads() error {
	first, second := make([]int, len(c.heads)), make([]int, len(c.heads))
	for k, u := range c.heads {
		first[k], second[k] = u.first, u.first+1
	}
	refused := c.try(first, 1)
	if err := c.requery(second); err != nil {
		return errors.Join(err, refused)
	}
	var along []int
	for _, u := range c.heads {
		if c.statuses[u.first+1] != c.wanted[u.first+1] {
			continue
		}
		for i := u.first; i < u.first+u.pages; i++ {
			along = append(along, i)
		}
	}
	return errors.Join(c.requery(along), refused)
}

// requery queries some pages again.
func (c *chunk) requery(index []int) error {
	if len(index) == 0 {
		return nil
	}
	addresses, statuses := make([]uint64, len(index)), make([]int32, len(index))
	for k, i := range index {
		addresses[k] = c.addresses[i]
	}
	if err := c.space.query(addresses, statuses); err != nil {
		return &MoveError{PID: c.pid, Address: addresses[0], Err: err}
	}
	for k, i := range index {
		if noPage(statuses[k]) {
			return c.queryAll() // absent, or hidden
		}
		c.statuses[i] = statuses[k]
	}
	return nil
}

// try asks for the moves once, with a call for each target node. It re-queries
// the pages that the kernel did not report as migrated: the kernel writes the
// target as a page's status once it has migrated the page. Since the kernel
// stops at the first batch with a failure, more pieces limit how many pages an
// unmovable one can block. try fails where the kernel refuses the whole call:
// going on would only press on a full node.
func (c *chunk) try(pages []int, pieces int) error {
	var refused error
	for node := range c.targets.All() {
		for _, piece := range split(c.to(pages, int32(node)), pieces) {
			if err := c.call(piece, int32(node)); err != nil {
				refused = &MoveError{PID: c.pid, Address: c.addresses[piece[0]], Nodes: topology.SetOf(node), Err: err}
				break
			}
		}
	}
	return errors.Join(c.requery(c.unconfirmed(pages)), refused)
}

// to returns those of the pages whose target is a node.
func (c *chunk) to(pages []int, node int32) []int {
	if c.targets.Len() == 1 {
		return pages
	}
	var index []int
	for _, i := range pages {
		if c.wanted[i] == node {
			index = append(index, i)
		}
	}
	return index
}

// unconfirmed returns the pages of an attempt that the kernel did not report on
// their target.
func (c *chunk) unconfirmed(pages []int) []int {
	var index []int
	for _, i := range pages {
		if c.reasons[i] == c.wanted[i] {
			c.statuses[i] = c.wanted[i]
		} else {
			index = append(index, i)
		}
	}
	return index
}

func (c *chunk) call(index []int, node int32) error {
	a := &c.asked
	a.addresses, a.nodes, a.statuses = sized(a.addresses, len(index)), sized(a.nodes,
		len(index)), sized(a.statuses, len(index))
	for k, i := range index {
		a.addresses[k], a.nodes[k], a.statuses[k] = c.addresses[i], node, unwritten
	}
	err := c.space.move(a.addresses, a.nodes, a.statuses)
	unreported := unwritten
	if errno := unix.Errno(0); errors.As(err, &errno) {
		unreported = -int32(errno)
	}
	for k, i := range index {
		if c.reasons[i] = a.statuses[k]; c.reasons[i] == unwritten {
			c.reasons[i] = unreported
		}
	}
	return err
}

// account adds the chunk's outcome to the result, one run of equal pages at a
// time.
func (c *chunk) account(r *MoveResult) {
	for i := 0; i < len(c.before); {
		end := i + 1
		for end < len(c.before) && c.alike(i, end) {
			end++
		}
		c.accountRun(r, i, end-i)
		i = end
	}
}

// alike reports whether two pages had the same outcome.
func (c *chunk) alike(i, k int) bool {
	return c.before[i] == c.before[k] && c.statuses[i] == c.statuses[k] && c.wanted[i] == c.wanted[k] &&
		c.hidden[i] == c.hidden[k] && c.reasons[i] == c.reasons[k]
}

func (c *chunk) accountRun(r *MoveResult, i, pages int) {
	was, status, bytes := c.before[i], c.statuses[i], topology.Bytes(pages)*c.step
	if was >= 0 {
		r.Before[topology.NodeID(was)] += bytes
	}
	if status >= 0 {
		r.After[topology.NodeID(status)] += bytes
	}
	switch {
	case c.hidden[i]:
		r.Failed, r.Hidden = r.Failed+bytes, r.Hidden+bytes
		r.Why["HIDDEN"] += uint64(pages)
	case noPage(status):
		r.Absent += bytes
	case status < 0 || (c.wanted[i] != stay && status == was):
		r.Failed += bytes
		r.Why[c.reason(i)] += uint64(pages)
	case was >= 0 && was != status:
		r.Moved += bytes
	}
}

// reason names why a page did not move: the answer to the attempt if there was
// one, else the queried status.
func (c *chunk) reason(i int) string {
	switch {
	case c.reasons[i] < 0:
		return errnoName(c.reasons[i])
	case c.statuses[i] < 0:
		return errnoName(c.statuses[i])
	}
	return errnoName(unwritten)
}

// split cuts a list into at most n pieces of about equal length.
func split(index []int, n int) [][]int {
	var pieces [][]int
	size := max(1, (len(index)+n-1)/n)
	for len(index) > 0 {
		k := min(size, len(index))
		pieces = append(pieces, index[:k])
		index = index[k:]
	}
	return pieces
}
