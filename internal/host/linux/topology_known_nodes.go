package linux

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxNodeFiles is how many files about nodes stay open: those of some 50 nodes with two sizes of huge pages.
const maxNodeFiles = 256

// knownNodes are nodes as they were read when other CPUs or nodes came online last. Their memory and their huge pages
// are read again from files that stay open.
type knownNodes struct {
	ids      []int
	online   string // CPUs, as the kernel names them
	nodes    []topology.Node
	measured *topology.Measured
	files    []nodeFiles // of each node
	cache    *FileCache
}

// nodeFiles are the files of one node that change.
type nodeFiles struct {
	meminfo *CachedFile
	pools   []poolCounts // as in HugePages of the node
}

type poolCounts struct{ total, free *CachedFile }

// newKnownNodes remembers nodes that have just been read.
func newKnownNodes(root, online string, ids []int, nodes []topology.Node, measured *topology.Measured) *knownNodes {
	k := &knownNodes{ids: ids, online: online, nodes: slices.Clone(nodes), measured: measured,
		cache: Root(root).NewFileCache(maxNodeFiles)}
	for i := range nodes {
		id := int(nodes[i].ID)
		f := nodeFiles{meminfo: k.cache.File(nodePath(id, "meminfo"))}
		for _, pool := range nodes[i].HugePages {
			kib := strconv.FormatUint(uint64(pool.Size/topology.KiB), 10)
			folder := nodePath(id, "hugepages", "hugepages-"+kib+"kB")
			f.pools = append(f.pools, poolCounts{
				total: k.cache.File(folder, "nr_hugepages"), free: k.cache.File(folder, "free_hugepages")})
		}
		k.files = append(k.files, f)
	}
	return k
}

// again returns the nodes with the present figures of their memory. ok is false if all must be read again: something
// cannot be read, or memory came online.
func (k *knownNodes) again() (nodes []topology.Node, ok bool) {
	nodes = slices.Clone(k.nodes)
	t := &tree{} // for gaps
	for i := range nodes {
		n, f := &nodes[i], &k.files[i]
		n.Distances, n.HugePages = maps.Clone(n.Distances), slices.Clone(n.HugePages)
		text, err := f.meminfo.Read()
		if err != nil {
			return nil, false
		}
		t.memoryOf(n, "meminfo", string(text))
		if len(t.gaps) > 0 || n.Memory != k.nodes[i].Memory { // with other memory it may have other huge pages
			return nil, false
		}
		for j := range f.pools {
			var hasTotal, hasFree bool
			n.HugePages[j].Total, hasTotal = pages(f.pools[j].total)
			if n.HugePages[j].Free, hasFree = pages(f.pools[j].free); !hasTotal || !hasFree {
				return nil, false
			}
		}
	}
	return nodes, true
}

func (k *knownNodes) close() {
	if k == nil {
		return
	}
	for _, f := range k.files {
		f.meminfo.Close()
		for _, p := range f.pools {
			p.total.Close()
			p.free.Close()
		}
	}
}

// pages reads a file that has a number of pages.
func pages(f *CachedFile) (uint64, bool) {
	text, err := f.Read()
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	return n, err == nil
}
