package xen

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Config is an xl configuration: its text, and where each setting is in it.
type Config struct {
	text     string
	settings []setting
}

// setting is one statement "key = value".
type setting struct {
	key      string
	from, to int // of the statement in the text, with the end of its last line
	value    value
	adds     bool // "+="
}

// value is a string or number, or a list.
type value struct {
	text     string
	list     []value
	is       valueKind
	from, to int // of a string in the text, without its quotes
}

type valueKind int

const (
	isNone valueKind = iota
	isString
	isNumber
	isList
)

// defaultMemory is the memory in MiB of a VM whose configuration names none (xl.cfg(5)).
const defaultMemory = 32

// maxConfig bounds what is read, and maxDepth the lists within lists.
const (
	maxConfig = 1 << 20
	maxDepth  = 8
)

// ParseConfig reads an xl configuration (xl.cfg(5)). The text itself stays as it is.
func ParseConfig(text []byte) (*Config, error) {
	if len(text) > maxConfig {
		return nil, fmt.Errorf("the configuration has more than %d bytes", maxConfig)
	}
	s := scanner{text: string(text), line: 1}
	c := &Config{text: s.text}
	for {
		s.space(true)
		if s.done() {
			break
		}
		one, err := s.statement()
		if err != nil {
			return nil, fmt.Errorf("line %d of the configuration: %w", s.line, err)
		}
		c.settings = append(c.settings, one)
	}
	if len(c.settings) == 0 {
		return nil, errors.New("the configuration has no settings")
	}
	return c, nil
}

// scanner reads the text of a configuration.
type scanner struct {
	text string
	at   int
	line int
}

func (s *scanner) done() bool { return s.at >= len(s.text) }

func (s *scanner) peek() byte {
	if s.done() {
		return 0
	}
	return s.text[s.at]
}

// space skips blanks and comments, and ends of lines and semicolons if they separate nothing here.
func (s *scanner) space(lines bool) {
	for !s.done() {
		switch b := s.peek(); {
		case b == ' ' || b == '\t' || b == '\r':
		case b == '#':
			for !s.done() && s.peek() != '\n' {
				s.at++
			}
			continue
		case b == '\n' && lines:
			s.line++
		case b == ';' && lines:
		default:
			return
		}
		s.at++
	}
}

func isWord(b byte) bool {
	return b == '_' || b == '.' || b == '-' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func (s *scanner) word() string {
	from := s.at
	for !s.done() && isWord(s.peek()) {
		s.at++
	}
	return s.text[from:s.at]
}

func (s *scanner) statement() (setting, error) {
	one := setting{from: s.at}
	if one.key = s.word(); one.key == "" {
		return one, fmt.Errorf("a setting begins with %q", s.peek())
	}
	s.space(false)
	if s.peek() == '+' {
		one.adds = true
		s.at++
	}
	if s.peek() != '=' {
		return one, fmt.Errorf("%s is followed by %q instead of =", one.key, s.peek())
	}
	s.at++
	var err error
	if one.value, err = s.value(0); err != nil {
		return one, fmt.Errorf("%s: %w", one.key, err)
	}
	one.to = s.at
	s.space(false)
	if b := s.peek(); !s.done() && b != '\n' && b != ';' {
		return one, fmt.Errorf("%s: its value is followed by %q", one.key, b)
	}
	return one, nil
}

func (s *scanner) value(depth int) (value, error) {
	s.space(depth > 0)
	switch b := s.peek(); {
	case s.done():
		return value{}, errors.New("has no value")
	case b == '"' || b == '\'':
		return s.quoted(b)
	case b == '[':
		if depth >= maxDepth {
			return value{}, fmt.Errorf("has lists in more than %d levels", maxDepth)
		}
		return s.list(depth)
	}
	word := s.word()
	if word == "" {
		return value{}, fmt.Errorf("its value begins with %q", s.peek())
	}
	return value{text: word, is: isNumber}, nil
}

func (s *scanner) quoted(quote byte) (value, error) {
	s.at++
	from := s.at
	for !s.done() && s.peek() != quote {
		switch s.peek() {
		case '\n':
			return value{}, errors.New("a text does not end on its line")
		case '\\': // xl unescapes, but the rules for an escaped quote differ between its versions
			return value{}, errors.New("a text with a backslash is not supported")
		}
		s.at++
	}
	if s.done() {
		return value{}, errors.New("a text does not end")
	}
	s.at++
	return value{text: s.text[from : s.at-1], is: isString, from: from, to: s.at - 1}, nil
}

func (s *scanner) list(depth int) (value, error) {
	s.at++
	v := value{is: isList}
	for {
		s.space(true)
		switch {
		case s.done():
			return v, errors.New("a list does not end")
		case s.peek() == ']':
			s.at++
			return v, nil
		}
		one, err := s.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.list = append(v.list, one)
		s.space(true)
		switch {
		case s.peek() == ',':
			s.at++
		case s.peek() != ']':
			return v, fmt.Errorf("a value of a list is followed by %q", s.peek())
		}
	}
}

// get returns the value of a key, the last one if there are several.
func (c *Config) get(key string) (v value, ok bool) {
	for _, s := range c.settings {
		if s.key == key && !s.adds {
			v, ok = s.value, true
		}
	}
	return v, ok
}

// Name returns the name of the VM.
func (c *Config) Name() (string, error) {
	v, ok := c.get("name")
	if !ok || v.is == isList || v.text == "" {
		return "", errors.New("the configuration has no name")
	}
	return v.text, nil
}

func (c *Config) number(key string, otherwise uint64) (uint64, error) {
	v, ok := c.get(key)
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(v.text, 0, 40)
	if v.is == isList || err != nil || n == 0 {
		return 0, fmt.Errorf("%s = %q: allowed is a number above 0", key, v.text)
	}
	return n, nil
}

// Type returns the kind of guest: pv, pvh or hvm.
func (c *Config) Type() string {
	if v, ok := c.get("type"); ok {
		return strings.ToLower(v.text)
	}
	if v, ok := c.get("builder"); ok && v.text == "hvm" {
		return "hvm"
	}
	return "pv"
}

// Spec returns what the configuration asks for. CPUs and nodes that it names are obeyed: they limit
// where the VM may be placed.
func (c *Config) Spec(t *topology.Topology) (guest.Spec, error) {
	s := guest.Spec{Binding: guest.MemorySpec{Mode: guest.MemoryStrict},
		CPU:      guest.CPUSpec{Emulator: guest.HelperNone, IOPolicy: guest.HelperNone}, // it has none on the host
		Topology: guest.TopologySpec{Mode: guest.TopologyOff}}
	var errs [5]error
	s.Name, errs[0] = c.Name()
	cells, err := c.virtualNodes()
	if err != nil {
		return s, err
	}
	vcpusOfCells, memoryOfCells := uint64(0), uint64(0)
	for _, cell := range cells {
		one := guest.CellSpec{VCPUs: cell.vcpus.Len(), Memory: cell.memory}
		s.Topology.Cells = append(s.Topology.Cells, one)
		vcpusOfCells += uint64(one.VCPUs) //nolint:gosec // a length
		memoryOfCells += uint64(one.Memory / topology.MiB)
	}
	vcpus, err := c.number("vcpus", max(1, vcpusOfCells))
	most, err2 := c.number("maxvcpus", vcpus)
	errs[1] = errors.Join(err, err2)
	if max(vcpus, most) > maxVCPUs {
		errs[1] = fmt.Errorf("vcpus = %d: allowed are up to %d", max(vcpus, most), maxVCPUs)
	}
	memory, err := c.number("memory", cmp.Or(memoryOfCells, defaultMemory))
	limit, err2 := c.number("maxmem", memory)
	errs[2] = errors.Join(err, err2)
	s.VCPUs = int(min(max(vcpus, most), maxVCPUs)) //nolint:gosec // at most maxVCPUs
	s.Memory = topology.Bytes(max(memory, limit)) * topology.MiB
	if s.Limits.CPUs, errs[3] = c.pinned(t); errs[3] == nil {
		if v, ok := c.get("pool"); ok {
			s.Limits.Pool = v.text
		}
	}
	if cells != nil {
		s.Topology.Mode, s.Topology.Count = guest.TopologyCells, len(cells)
		errs[4] = c.CheckCells(&s)
	}
	return s, errors.Join(errs[:]...)
}

// pinned returns the CPUs that cpus names; none if it names none.
func (c *Config) pinned(t *topology.Topology) (topology.CPUSet, error) {
	v, ok := c.get("cpus")
	if !ok {
		return topology.CPUSet{}, nil
	}
	if v.is != isList {
		v = value{list: []value{v}}
	}
	var all topology.CPUSet
	for _, one := range v.list {
		if one.is == isList {
			return all, errors.New("cpus: has a list within a list")
		}
		set, err := cpuList(one.text, t)
		if err != nil {
			return all, fmt.Errorf("cpus = %q: %w", one.text, err)
		}
		all = all.Union(set)
	}
	if all.Equal(t.CPUSet()) {
		return topology.CPUSet{}, nil
	}
	return all, nil
}

// cpuList reads xl's list of CPUs: "0-3,5,^1", "all", "nodes:0-1,^node:1".
func cpuList(list string, t *topology.Topology) (topology.CPUSet, error) {
	var set topology.CPUSet
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		rest, not := strings.CutPrefix(part, "^")
		var these topology.CPUSet
		nodes, byNode := strings.CutPrefix(rest, "node:")
		if !byNode {
			nodes, byNode = strings.CutPrefix(rest, "nodes:")
		}
		switch {
		case rest == "all":
			these = t.CPUSet()
		case byNode:
			ids, err := topology.ParseSet[topology.NodeID](nodes)
			if err != nil {
				return set, err
			}
			for i := range t.Nodes {
				if ids.Contains(t.Nodes[i].ID) {
					these = these.Union(t.Nodes[i].CPUs)
				}
			}
		default:
			var err error
			if these, err = topology.ParseSet[topology.CPUID](rest); err != nil {
				return set, err
			}
		}
		if not {
			set = set.Minus(these)
		} else {
			set = set.Union(these)
		}
	}
	if set.IsEmpty() {
		return set, errors.New("names no CPU")
	}
	return set, nil
}

// Rewrite returns the configuration bound to a placement: cpus and cpus_soft are replaced where they
// are, or added at the end; so is vnuma, of which only pnode and vdistances are replaced, if the guest
// sees cells. All else, comments included, stays byte for byte. Both cpus and cpus_soft are written:
// with cpus alone, libxl chooses the nodes of the memory by itself, other nodes than those of the
// CPUs among them (seen with Xen 4.17).
func (c *Config) Rewrite(p *guest.Placement) []byte {
	binding := cpuBinding(p)
	var edits []edit
	written := map[string]bool{}
	for _, s := range c.settings {
		switch {
		case s.key == "vnuma" && p.Visible && !written[s.key]:
			edits = append(edits, c.vnumaEdits(p)...)
		case s.key != "cpus" && s.key != "cpus_soft":
			continue
		case binding == "" || written[s.key]:
			edits = append(edits, edit{from: s.from, to: s.to})
		default:
			edits = append(edits, edit{s.from, s.to, s.key + " = " + binding})
		}
		written[s.key] = true
	}
	more := ""
	for _, key := range []string{"cpus", "cpus_soft"} {
		if binding != "" && !written[key] {
			more += key + " = " + binding + "\n"
		}
	}
	if p.Visible && !written["vnuma"] {
		more += vnuma(p)
	}
	text := edited(c.text, edits)
	if binding+more != "" && !strings.HasSuffix(c.text, "\n") {
		text += "\n"
	}
	return []byte(text + more)
}

// cpuBinding is the value of cpus for a placement; "": none.
func cpuBinding(p *guest.Placement) string {
	if len(p.VCPUs) == 0 || p.CPUMode == guest.CPUNone {
		return ""
	}
	all := make([]string, len(p.VCPUs))
	for i, v := range p.VCPUs {
		all[i] = `"` + v.CPUs.String() + `"`
	}
	if len(slices.Compact(slices.Clone(all))) == 1 {
		return all[0]
	}
	return "[ " + strings.Join(all, ", ") + " ]"
}

// edit replaces a part of a text.
type edit struct {
	from, to int
	text     string
}

// edited returns a text with edits that do not overlap.
func edited(text string, edits []edit) string {
	slices.SortFunc(edits, func(a, b edit) int { return a.from - b.from })
	var out strings.Builder
	at := 0
	for _, e := range edits {
		out.WriteString(text[at:e.from] + e.text)
		at = e.to
	}
	return out.String() + text[at:]
}
