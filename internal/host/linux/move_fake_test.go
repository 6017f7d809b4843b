package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// fakeSpace is an address space that behaves like the kernel's in the ways that
// matter: huge pages move whole and answer EBUSY to their other addresses,
// pinned pages never move, a batch with a failure leaves later ones untried,
// nodes are finite, and hidden pages look absent until they are touched.
type fakeSpace struct {
	node   []int32 // of each small page from address 0 on; negative: absent
	huge   []bool  // part of a huge page (whole aligned runs of 512)
	pinned []bool
	hidden []bool
	room   map[int32]int // small pages that a node still has room for; absent key: no limit
	calls  int
}

func (f *fakeSpace) query(addresses []uint64, statuses []int32) error {
	for i, a := range addresses {
		statuses[i] = f.node[a/4096]
		if f.hidden[a/4096] || statuses[i] < 0 {
			statuses[i] = -int32(unix.ENOENT)
		}
	}
	return nil
}

func (f *fakeSpace) move(addresses []uint64, nodes, statuses []int32) error {
	f.calls++
	isolated := map[uint64]bool{}
	for i, a := range addresses {
		page, count := a/4096, uint64(1)
		if f.huge[page] {
			page, count = page/512*512, 512
		}
		switch {
		case isolated[page]:
			statuses[i] = -int32(unix.EBUSY)
			continue
		case f.hidden[a/4096] || f.node[page] < 0:
			statuses[i] = -int32(unix.ENOENT)
			continue
		case f.pinned[page]:
			return nil // the batch failed: the entries after it stay unwritten
		}
		isolated[page] = true
		if left, limited := f.room[nodes[i]]; limited && left < int(count) {
			return unix.ENOMEM
		} else if limited {
			f.room[nodes[i]] = left - int(count)
		}
		for k := page; k < page+count; k++ {
			f.node[k] = nodes[i]
		}
		statuses[i] = nodes[i]
	}
	return nil
}

func (f *fakeSpace) pagemap(address uint64, entries []byte) (int, error) {
	for i := 0; i*8 < len(entries); i++ {
		if k := int(address/4096) + i; k < len(f.node) && f.node[k] >= 0 {
			binary.NativeEndian.PutUint64(entries[i*8:], pagemapPresent)
		}
	}
	return len(entries), nil
}

func (f *fakeSpace) zero(uint64) bool { return false }

func (f *fakeSpace) touch(addresses []uint64) int {
	for _, a := range addresses {
		f.hidden[a/4096] = false
	}
	return len(addresses)
}

func drawSpace(t *rapid.T, pinnedPages bool) *fakeSpace {
	f := &fakeSpace{room: map[int32]int{}}
	for range rapid.IntRange(1, 5).Draw(t, "blocks") {
		node := rapid.SampledFrom([]int32{0, 1, 2, -1}).Draw(t, "node")
		huge := node >= 0 && rapid.Bool().Draw(t, "huge")
		hidden := rapid.IntRange(0, 3).Draw(t, "hidden") == 0
		for i := range 512 {
			at := node
			if !huge && i%7 == 3 {
				at = rapid.SampledFrom([]int32{0, 1, -1}).Draw(t, "mixed")
			}
			f.node = append(f.node, at)
			f.huge = append(f.huge, huge)
			f.hidden = append(f.hidden, hidden)
			f.pinned = append(f.pinned, pinnedPages && !huge && i%170 == 9)
		}
	}
	return f
}

func (f *fakeSpace) held() (by topology.MemoryByNode) {
	by = topology.MemoryByNode{}
	for _, n := range f.node {
		if n >= 0 {
			by[topology.NodeID(n)] += 4096
		}
	}
	return by
}

// Whatever the kernel does, Move must report the state of the address space.
func TestMove_ReportsTheFinalState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawSpace(t, rapid.Bool().Draw(t, "pinned"))
		if rapid.Bool().Draw(t, "full") {
			f.room[3] = rapid.IntRange(0, 1500).Draw(t, "room")
		}
		present := sumOf(f.held())
		size := topology.Bytes(len(f.node)) * 4096
		targets := rapid.SampledFrom([]topology.NodeSet{nodes("3"), nodes("1,3"), nodes("0-1")}).Draw(t, "targets")
		m := Mover{space: f, Chunk: size, Spread: rapid.Bool().Draw(t, "spread")}
		r, err := m.Move(t.Context(), inventory.MemoryRange{Size: size, PageSize: 4096}, targets)
		if err != nil && !errors.Is(err, unix.ENOMEM) {
			t.Fatal(err)
		}
		held := f.held()
		for node, amount := range held {
			if r.After[node] != amount {
				t.Fatalf("node %d has %v, reported %v", node, amount, r.After[node])
			}
		}
		if sumOf(r.After) != present || sumOf(held) != present || r.Absent+present != size {
			t.Fatalf("pages were lost: %v of %v, %+v", sumOf(held), present, r)
		}
		if amount := outside(r, targets); amount > r.Failed {
			t.Fatalf("%v are outside %s, but only %v are reported as failed", amount, targets, r.Failed)
		}
		if err == nil && r.Failed == 0 && outside(r, targets) > 0 {
			t.Fatalf("Move reported success: %+v", r)
		}
	})
}

// Pages that never move must not keep others from moving.
func TestMove_OnlyPinnedPagesStayBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawSpace(t, true)
		want := topology.Bytes(0)
		for i, n := range f.node {
			if f.pinned[i] && n >= 0 {
				want += 4096
			}
		}
		size := topology.Bytes(len(f.node)) * 4096
		r, err := Mover{
			space: f,
			Chunk: size,
		}.Move(t.Context(), inventory.MemoryRange{Size: size, PageSize: 4096}, nodes("3"))
		if err != nil {
			t.Fatal(err)
		}
		if outside(r, nodes("3")) > want {
			t.Fatalf("%v are pinned, and %v stayed behind (%v)", want, outside(r, nodes("3")), r.Why)
		}
	})
}

func TestHugePagesMoveByOneAddressEach(t *testing.T) {
	f := &fakeSpace{room: map[int32]int{}}
	for range 4 * 512 {
		f.node, f.huge, f.hidden, f.pinned = append(f.node, 0), append(f.huge, true), append(f.hidden, false), append(
			f.pinned, false)
	}
	size := topology.Bytes(len(f.node)) * 4096
	r, err := Mover{space: f}.Move(t.Context(), inventory.MemoryRange{Size: size, PageSize: 4096}, nodes("2"))
	if err != nil || r.After[2] != size || len(r.Why) != 0 || f.calls != 1 {
		t.Errorf("%+v in %d calls, error %v", r, f.calls, err)
	}
}

// outside sums the memory of a result that is on other nodes than the given ones.
func outside(r MoveResult, targets topology.NodeSet) (sum topology.Bytes) {
	for node, amount := range r.After {
		if !targets.Contains(node) {
			sum += amount
		}
	}
	return sum
}

// Quick makes a call only for many pages: of small pages of which some are in
// use, it leaves some hundred, and a move that is not quick moves them later.
func TestQuickLeavesFewPages(t *testing.T) {
	space := func() *fakeSpace {
		f := &fakeSpace{room: map[int32]int{}}
		for i := range 16 * 512 {
			f.node, f.huge = append(f.node, 0), append(f.huge, false)
			f.hidden, f.pinned = append(f.hidden, false), append(f.pinned, i%1000 == 999)
		}
		return f
	}
	f, thorough := space(), space()
	r := inventory.MemoryRange{Size: topology.Bytes(len(f.node)) * 4096, PageSize: 4096}
	if _, err := (Mover{space: thorough}).Move(t.Context(), r, nodes("2")); err != nil {
		t.Fatal(err)
	}
	quick, err := Mover{space: f, Quick: true}.Move(t.Context(), r, nodes("2"))
	if err != nil || f.calls > thorough.calls/4 || quick.Failed == 0 || quick.Failed > r.Size/8 {
		t.Errorf("quick: %v left behind in %d calls (else %d), error %v", quick.Failed, f.calls, thorough.calls, err)
	}
	f.pinned = make([]bool, len(f.node)) // no page is in use any more
	rest, err := Mover{space: f}.Move(t.Context(), r, nodes("2"))
	if err != nil || rest.Failed != 0 || rest.After[2] != r.Size || rest.Moved != quick.Failed {
		t.Errorf("later: %+v, error %v", rest, err)
	}
}

// Parts of a range that move at the same time give the sum of their results, and
// the progress of the whole. Every page is visited once.
func TestMove_InParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.IntRange(1, 64<<20/4096).Draw(t, "pages")
		first := rapid.IntRange(0, 1000).Draw(t, "first page")
		threads := rapid.IntRange(0, 5).Draw(t, "threads")
		f := &lockedSpace{fakeSpace: fakeSpace{room: map[int32]int{}}}
		for range first + pages {
			f.node, f.huge = append(f.node, 1), append(f.huge, false)
		}
		f.hidden, f.pinned = make([]bool, first+pages), make([]bool, first+pages)
		f.pinned[first+pages-1] = true
		size := topology.Bytes(pages) * 4096
		var last topology.Bytes
		m := Mover{space: f, Threads: threads, Progress: func(done, total topology.Bytes) {
			if done < last || total != size {
				t.Errorf("%v of %v after %v", done, total, last)
			}
			last = done
		}}
		r, err := m.Move(context.Background(),
			inventory.MemoryRange{Address: uint64(first) * 4096, Size: size, PageSize: 4096}, nodes("2"))
		if err != nil || r.Moved != size-4096 || r.Failed != 4096 || r.Before[1] != size || r.After[2] != size-4096 ||
			last != size {
			t.Errorf("%d pages in %d threads: %+v, %v, %v", pages, threads, r, last, err)
		}
	})
}

// lockedSpace is a fakeSpace for several threads.
type lockedSpace struct {
	mu sync.Mutex
	fakeSpace
}

func (l *lockedSpace) query(addresses []uint64, statuses []int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fakeSpace.query(addresses, statuses)
}

func (l *lockedSpace) move(addresses []uint64, nodes, statuses []int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fakeSpace.move(addresses, nodes, statuses)
}
