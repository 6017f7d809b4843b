package linux

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Mapping is one line of /proc/PID/numa_maps: a mapping with its memory policy
// and the pages that are present.
type Mapping struct {
	Address uint64
	// Policy is the kernel's text: "default", "bind:0-1", "prefer (many):2",
	// "bind=static:0".
	Policy string
	// Mode is the policy without flags and nodes; Nodes are empty for "default" and "local".
	Mode  string
	Nodes topology.NodeSet
	// File is the mapped file, empty for anonymous memory. A deleted file (memfd) ends in " (deleted)".
	File              string
	Heap, Stack, Huge bool
	// Pages counts pages present per node, in units of PageSize. A transparent
	// huge page counts as 512 small ones.
	Pages map[topology.NodeID]uint64
	// Anon counts private pages of the process: private memory, and the pages
	// of files that it has written to.
	Anon uint64
	// PageSize is kernelpagesize_kB; 0 where the mapping has no page, because
	// the kernel then omits it.
	PageSize topology.Bytes
}

// ByNode gives the memory present per node.
func (m Mapping) ByNode() topology.MemoryByNode {
	sizes := make(topology.MemoryByNode, len(m.Pages))
	for node, pages := range m.Pages {
		sizes[node] = topology.Bytes(pages) * m.PageSize
	}
	return sizes
}

// longestLine bounds a line of numa_maps or maps: a path of PATH_MAX, every byte escaped, and the counters of 1024
// nodes.
const longestLine = 64 << 10

// Unparsed is a part of numa_maps that could not be parsed.
type Unparsed struct {
	What string // which part
	Why  string
}

// ParseNUMAMaps reads /proc/PID/numa_maps. A line or token that it cannot parse
// becomes a gap and the rest is returned; only a failing reader is an error.
func ParseNUMAMaps(r io.Reader) ([]Mapping, []Unparsed, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), longestLine)
	var mappings []Mapping
	var gaps []Unparsed
	for number := 1; lines.Scan(); number++ {
		if lines.Text() == "" {
			continue
		}
		m, unknown, err := parseMapping(lines.Text())
		if err != nil {
			gaps = append(gaps, Unparsed{fmt.Sprintf("line %d", number), err.Error()})
			continue
		}
		for _, token := range unknown {
			gaps = append(gaps, Unparsed{fmt.Sprintf("line %d: %q", number, abbreviate(token)), "not a known field"})
		}
		mappings = append(mappings, m)
	}
	if err := lines.Err(); err != nil {
		return mappings, gaps, fmt.Errorf("reading numa_maps after %d mappings: %w", len(mappings), err)
	}
	return mappings, gaps, nil
}

func parseMapping(line string) (m Mapping, unknown []string, err error) {
	address, rest, _ := strings.Cut(line, " ")
	if m.Address, err = strconv.ParseUint(address, 16, 64); err != nil {
		return m, nil, fmt.Errorf("%q is not an address", abbreviate(address))
	}
	if rest, err = m.takePolicy(rest); err != nil {
		return m, nil, err
	}
	for rest != "" {
		var token string
		token, rest, _ = strings.Cut(rest, " ")
		known, err := m.take(token)
		if err != nil {
			return m, nil, err
		}
		if !known {
			unknown = append(unknown, token)
		}
	}
	if m.PageSize == 0 && len(m.Pages) > 0 {
		return m, nil, errors.New("pages without kernelpagesize_kB: their size is unknown")
	}
	return m, unknown, nil
}

// takePolicy reads the policy, the only field that may contain a space: "prefer
// (many)" and "weighted interleave".
func (m *Mapping) takePolicy(text string) (rest string, err error) {
	m.Policy, rest, _ = strings.Cut(text, " ")
	if m.Policy == "prefer" || m.Policy == "weighted" {
		more, after, _ := strings.Cut(rest, " ")
		if strings.HasPrefix(more, "(many)") || strings.HasPrefix(more, "interleave") {
			m.Policy, rest = m.Policy+" "+more, after
		}
	}
	mode, list, _ := strings.Cut(m.Policy, ":")
	m.Mode, _, _ = strings.Cut(mode, "=")
	if m.Mode == "" {
		return rest, errors.New("no memory policy")
	}
	if m.Nodes, err = topology.ParseSet[topology.NodeID](list); err != nil {
		return rest, fmt.Errorf("nodes of policy %q: %w", abbreviate(m.Policy), err)
	}
	return rest, nil
}

// countersLeftOut are fields of numa_maps that contain nothing about nodes.
var countersLeftOut = map[string]bool{
	"dirty":     true,
	"mapped":    true,
	"mapmax":    true,
	"swapcache": true,
	"active":    true,
	"writeback": true,
}

func (m *Mapping) take(token string) (known bool, err error) {
	key, value, assigned := strings.Cut(token, "=")
	switch {
	case !assigned:
		return m.takeFlag(token), nil
	case key == "file":
		m.File = unescape(value)
	case key == "anon":
		if m.Anon, err = strconv.ParseUint(value, 10, 64); err != nil {
			return false, fmt.Errorf("%q: page count is not a number", abbreviate(token))
		}
	case key == "kernelpagesize_kB":
		kib, err := strconv.ParseUint(value, 10, 40)
		if err != nil || kib == 0 {
			return false, fmt.Errorf("%q: page size is not a number of KiB", abbreviate(token))
		}
		m.PageSize = topology.Bytes(kib) * topology.KiB
	case isNodeKey(key):
		return true, m.takePages(key, value)
	default:
		return countersLeftOut[key], nil
	}
	return true, nil
}

func (m *Mapping) takeFlag(token string) (known bool) {
	switch token {
	case "heap":
		m.Heap = true
	case "stack":
		m.Stack = true
	case "huge":
		m.Huge = true
	default:
		return token == ""
	}
	return true
}

func isNodeKey(key string) bool {
	return len(key) > 1 && key[0] == 'N' && key[1] >= '0' && key[1] <= '9'
}

func (m *Mapping) takePages(key, value string) error {
	nodes, err := topology.ParseSet[topology.NodeID](key[1:])
	node, one := nodes.First()
	if err != nil || !one || nodes.Len() != 1 {
		return fmt.Errorf("%q is not a node", abbreviate(key))
	}
	pages, err := strconv.ParseUint(value, 10, 44) // 44 bits of 1 MiB pages are the whole address space
	if err != nil {
		return fmt.Errorf("%q: page count is not a number", abbreviate(key+"="+value))
	}
	if m.Pages == nil {
		m.Pages = make(map[topology.NodeID]uint64, 4)
	}
	m.Pages[node] = pages
	return nil
}

// unescape undoes the kernel's octal escapes of space, tab, newline, "=" and "\" in paths.
func unescape(path string) string {
	if !strings.Contains(path, `\`) {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// NUMAMaps reads /proc/PID/numa_maps of a process. For that the kernel walks
// every page table entry of the process and holds its mmap lock meanwhile: read
// it on request only, never in a loop over large guests with small pages.
func (r Root) NUMAMaps(pid int) ([]Mapping, []Unparsed, error) {
	if err := r.answers(pid); err != nil {
		return nil, nil, err
	}
	file, err := os.Open(r.proc(pid, "numa_maps"))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the page locations of process %d: %w", pid, err)
	}
	defer file.Close()
	mappings, gaps, err := ParseNUMAMaps(file)
	if err != nil {
		err = fmt.Errorf("process %d: %w", pid, err)
	}
	for i := range gaps {
		gaps[i].What = "numa_maps " + gaps[i].What
	}
	return mappings, gaps, err
}
