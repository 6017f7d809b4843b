package xen

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// pageSize is the unit in which Xen counts a domain's memory, whatever pages map it.
const pageSize = 4 * topology.KiB

var (
	dumpHeading  = regexp.MustCompile(`'u' pressed -> dumping (?i:numa) info \(now = ([^)]*)\)`)
	dumpedDomain = regexp.MustCompile(`(?:Domain |\bd)(\d{1,9}) \(total: (\d{1,18})\):`)
	dumpedNode   = regexp.MustCompile(`^\s*Node (\d{1,5}): (\d{1,18})\s*$`)
)

// dump is the answer to the debug key u: the nodes of each domain's memory.
type dump struct {
	stamp string // time of Xen when it was written; empty: the beginning is lost
	nodes map[int]topology.MemoryByNode
	// cut are domains of which a part is lost: their figures do not add up.
	cut map[int]bool
}

// parseDump finds the last dump in the console ring. If its beginning has been overwritten, it
// contains the domains at its end.
func parseDump(console []byte) (dump, error) {
	text := string(console)
	d := dump{nodes: map[int]topology.MemoryByNode{}, cut: map[int]bool{}}
	if at := dumpHeading.FindAllStringSubmatchIndex(text, -1); len(at) > 0 {
		last := at[len(at)-1]
		d.stamp, text = text[last[2]:last[3]], text[last[1]:]
	}
	id, inDomain := 0, false
	var total, sum uint64
	end := func() {
		if inDomain && sum != total {
			delete(d.nodes, id)
			d.cut[id] = true
		}
		inDomain = false
	}
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimRight(line, "\r\n"), "(XEN) ")
		if f := dumpedDomain.FindStringSubmatch(line); f != nil {
			end()
			id, inDomain, sum = number(f[1]), true, 0
			total, _ = strconv.ParseUint(f[2], 10, 64)
			d.nodes[id] = topology.MemoryByNode{}
			delete(d.cut, id)
			continue
		}
		f := dumpedNode.FindStringSubmatch(line)
		if f == nil || !inDomain {
			continue
		}
		pages, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil || pages > 1<<50 {
			end()
			continue
		}
		sum += pages
		if pages > 0 {
			d.nodes[id][topology.NodeID(number(f[1]))] += topology.Bytes(pages) * pageSize
		}
	}
	end()
	if len(d.nodes) == 0 && len(d.cut) == 0 {
		return d, errors.New("the console ring of Xen has no answer to the debug key u; Xen must log warnings " +
			"(loglvl=warning, the default)")
	}
	return d, nil
}
