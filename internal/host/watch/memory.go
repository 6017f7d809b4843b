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
	// mapsAgain is how long figures from numa_maps are believed.
	mapsAgain = time.Minute
	// smallGuest is up to which size numa_maps of a guest with small pages is
	// read at all: the kernel walks every page for it.
	smallGuest = 256 * topology.MiB
)

// errTooLarge says why a guest's memory is not looked at in the loop.
var errTooLarge = errors.New("its figures are as old as the last inventory")

// memoryEye looks at where a guest's memory lies.
type memoryEye struct {
	files *linux.KeptMemory // nil: none, or not looked for yet
	// byNode and source are as handed out last, scratch is read into.
	byNode, scratch topology.MemoryByNode
	source          string
	// told says that figures are those of the inventory.
	told bool
	// next is when to look again at what is not read in each sample: whether
	// there are files, else numa_maps.
	next time.Time
}

func (m *memoryEye) Close() { m.files.Close() }

// sample returns the guest's memory by node, and from which source.
func (m *memoryEye) sample(w *Watcher, e *guestEye, now time.Time) (topology.MemoryByNode, string) {
	var err error
	if m.files == nil && !now.Before(m.next) {
		m.files, err = w.keeper.Memory(e.guest)
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
		return m.byNode, m.source // its cgroup is another, or the guest has ended, which its threads will show
	}
	w.gaps.set(inventory.MemoryUnread, e.object, "its memory by node", err)
	return m.byNode, m.source
}

func (m *memoryEye) readFiles() error {
	if m.scratch == nil {
		m.scratch = topology.MemoryByNode{}
	}
	clear(m.scratch)
	source, err := m.files.Read(m.scratch)
	if err == nil {
		m.told = false
		m.take(m.scratch, source)
	}
	return err
}

// take makes figures those to be handed out; what was handed out stays as it is.
func (m *memoryEye) take(byNode topology.MemoryByNode, source string) {
	m.source = source
	maps.DeleteFunc(byNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
	if !maps.Equal(byNode, m.byNode) {
		m.byNode = maps.Clone(byNode)
	}
}

// readMaps reads numa_maps where that is cheap, of one guest per sample; for
// other guests it takes what the inventory says.
func (m *memoryEye) readMaps(w *Watcher, g inventory.Guest, now time.Time) error {
	huge := g.Config.PageSize > 0 || g.Config.Source == linux.BackingHugetlbfs
	if !huge && (g.Config.Memory == 0 || g.Config.Memory > smallGuest) {
		m.next, m.told = now.Add(mapsAgain), true
		m.take(maps.Clone(g.Seen.MemoryByNode), g.Seen.MemorySource)
		return errors.Join(linux.ErrOnlyNUMAMaps, errTooLarge)
	}
	if w.mapsRead {
		return nil // in the next sample
	}
	w.mapsRead = true
	m.next = now.Add(mapsAgain)
	byNode, source, err := w.root.Memory(g)
	if err == nil {
		m.take(byNode, source)
	}
	return err
}
