package watch

import (
	"errors"
	"maps"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// mapsInterval is how often numa_maps of one guest is read.
	mapsInterval = time.Minute
	// smallGuest is the largest guest with small pages whose numa_maps is read:
	// the kernel walks every page for it.
	smallGuest = 256 * topology.MiB
)

// errTooLarge is the reason why a guest's memory is not read in the loop.
var errTooLarge = errors.New("its figures are those of the last inventory")

// memorySampler reads a guest's memory by node.
type memorySampler struct {
	files *linux.MemoryReader // nil: none, or not opened yet
	// byNode and source are the last published values; scratch is the buffer
	// for reading.
	byNode, scratch topology.MemoryByNode
	source          string
	// fromInventory says that the figures are those of the inventory.
	fromInventory bool
	// next is when to try again whatever is not read in each sample: opening
	// the files, or else numa_maps.
	next time.Time
}

func (m *memorySampler) Close() { m.files.Close() }

// sample returns the guest's memory by node, and its source.
func (m *memorySampler) sample(w *Watcher, e *guestSampler, now time.Time) (topology.MemoryByNode, string) {
	if m.files != nil && !w.slow && m.byNode != nil {
		return m.byNode, m.source
	}
	var err error
	if m.files == nil && !now.Before(m.next) {
		m.files, err = w.cache.OpenMemory(e.guest)
	}
	if m.files != nil {
		if err = m.readFiles(); err == nil {
			w.gaps.set(inventory.MemoryUnread, e.object, "its memory by node", nil)
			return m.byNode, m.source
		}
		m.files.Close()
		m.files = nil
	}
	if now.Before(m.next) {
		return m.byNode, m.source
	}
	if errors.Is(err, linux.ErrOnlyNUMAMaps) {
		err = m.readMaps(w, e.guest, now)
	} else if vanished(err) {
		return m.byNode, m.source // the guest is in another cgroup, or has ended, which its threads will show
	}
	w.gaps.set(inventory.MemoryUnread, e.object, "its memory by node", err)
	return m.byNode, m.source
}

func (m *memorySampler) readFiles() error {
	if m.scratch == nil {
		m.scratch = topology.MemoryByNode{}
	}
	clear(m.scratch)
	source, err := m.files.Read(m.scratch)
	if err == nil {
		m.fromInventory = false
		m.publish(m.scratch, source)
	}
	return err
}

// publish makes the figures the current ones; values already published do not
// change.
func (m *memorySampler) publish(byNode topology.MemoryByNode, source string) {
	m.source = source
	maps.DeleteFunc(byNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
	if !maps.Equal(byNode, m.byNode) {
		m.byNode = maps.Clone(byNode)
	}
}

// readMaps reads numa_maps where that is cheap, of one guest per sample; for
// other guests it uses the inventory's figures.
func (m *memorySampler) readMaps(w *Watcher, g inventory.Guest, now time.Time) error {
	huge := g.Config.PageSize > 0 || g.Config.Source == linux.BackingHugetlbfs
	if !huge && (g.Config.Memory == 0 || g.Config.Memory > smallGuest) {
		m.next, m.fromInventory = now.Add(mapsInterval), true
		m.publish(maps.Clone(g.Seen.MemoryByNode), g.Seen.MemorySource)
		return errors.Join(linux.ErrOnlyNUMAMaps, errTooLarge)
	}
	if w.mapsRead {
		return nil // in the next sample
	}
	w.mapsRead = true
	m.next = now.Add(mapsInterval)
	byNode, source, err := w.root.Memory(g)
	if err == nil {
		m.publish(byNode, source)
	}
	return err
}
