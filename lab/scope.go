package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// ScopeMode is what the access counter does.
type ScopeMode uint64

// Modes of the access counter.
const (
	ScopeOff   ScopeMode = iota // nothing is instrumented: full speed
	ScopeCount                  // misses are counted
	ScopeFelt                   // and delayed by distance
)

// ParseScopeMode reads "off", "count" or "felt".
func ParseScopeMode(s string) (ScopeMode, error) {
	for m, name := range []string{"off", "count", "felt"} {
		if s == name {
			return ScopeMode(m), nil
		}
	}
	return 0, fmt.Errorf("mode %q: allowed are off, count, felt", s)
}

// InLab is where the counter's file is seen from inside the lab.
const InLab = "/lab/scope"

// Layout of the shared file; scope/numascope.c knows it too.
const (
	scopeMagic    = 0x45504f4353414d55
	scopeCPUs     = 256
	scopeNodes    = 64
	wordBytes     = 8
	cpusWord      = 1
	nodesWord     = 2
	modeWord      = 3
	activeWord    = 4
	scopeNodeWord = 8
	scopeMissWord = scopeNodeWord + scopeNodes
	scopeZeroWord = scopeMissWord + scopeCPUs*scopeNodes
	scopeWords    = scopeZeroWord + scopeCPUs*scopeNodes
)

// Scope is the access counter of a lab. It is a file, so it can be opened
// outside the lab and inside it.
type Scope struct{ path string }

// OpenScope opens the counter's file; InLab when inside.
func OpenScope(path string) (*Scope, error) {
	s := &Scope{path}
	if magic, err := s.word(0); err != nil || magic != scopeMagic {
		return nil, fmt.Errorf("%s is no access counter (%w); it exists inside a lab", path, errors.Join(err, errors.New("no magic")))
	}
	return s, nil
}

// Scope returns the lab's access counter, switched off at first.
func (h *Host) Scope() (*Scope, error) { return OpenScope(h.share("scope")) }

// Misses is a count of accesses that missed the modelled cache of 1 MiB per
// CPU: a row per CPU, a column per node.
type Misses struct {
	Nodes []topology.NodeID `json:"nodes"`
	CPUs  [][]uint64        `json:"cpus"`
}

// Read returns all counts since the last Reset.
func (s *Scope) Read() (Misses, error) {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return Misses{}, err
	}
	if len(data) != scopeWords*wordBytes {
		return Misses{}, fmt.Errorf("%s has %d bytes, an access counter has %d", s.path, len(data), scopeWords*wordBytes)
	}
	word := func(i uint64) uint64 { return binary.LittleEndian.Uint64(data[i*wordBytes:]) }
	cpus, nodes := word(cpusWord), word(nodesWord)
	if cpus > scopeCPUs || nodes > scopeNodes {
		return Misses{}, fmt.Errorf("%s tells of %d CPUs and %d nodes; at most %d and %d have room", s.path, cpus, nodes, scopeCPUs, scopeNodes)
	}
	var m Misses
	for n := range nodes {
		m.Nodes = append(m.Nodes, topology.NodeID(word(scopeNodeWord+n)))
	}
	for c := range cpus {
		row := make([]uint64, nodes)
		for n := range nodes {
			cell := c*scopeNodes + n
			row[n] = word(scopeMissWord+cell) - word(scopeZeroWord+cell)
		}
		m.CPUs = append(m.CPUs, row)
	}
	return m, nil
}

// Set changes the mode and waits until it is in force: until the lab's first
// CPU next falls idle or returns from an interrupt.
func (s *Scope) Set(ctx context.Context, m ScopeMode) error {
	if err := s.write(modeWord, binary.LittleEndian.AppendUint64(nil, uint64(m))); err != nil {
		return err
	}
	return s.await(ctx, activeWord, uint64(m))
}

// Reset makes all counts begin at zero, for all readers. Counters are written
// by running CPUs, so they stay as they are: what they hold now becomes zero.
func (s *Scope) Reset() error {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	if len(data) != scopeWords*wordBytes {
		return fmt.Errorf("%s has %d bytes, an access counter has %d", s.path, len(data), scopeWords*wordBytes)
	}
	return s.write(scopeZeroWord, data[scopeMissWord*wordBytes:scopeZeroWord*wordBytes])
}

func (s *Scope) await(ctx context.Context, word, want uint64) error {
	for {
		if have, err := s.word(word); err != nil || have == want {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the access counter does not obey: %w", ctx.Err())
		case <-time.After(poll):
		}
	}
}

func (s *Scope) word(i uint64) (uint64, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var b [wordBytes]byte
	_, err = f.ReadAt(b[:], int64(i*wordBytes))
	return binary.LittleEndian.Uint64(b[:]), err
}

func (s *Scope) write(word uint64, data []byte) error {
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, int64(word*wordBytes))
	return errors.Join(err, f.Close())
}

//go:embed scope/numascope.c
var scopeSource []byte

// qemuVersion is what --version says, without the patch level.
type qemuVersion struct{ major, minor int }

// physicalAddresses tells whether plugins get guest physical addresses: from
// QEMU 8.2 on. Before, qemu_plugin_hwaddr_phys_addr returned the offset of the
// memory block plus the address of its region (QEMU's plugins/api.c, changed by
// "plugin: Simplify struct qemu_plugin_hwaddr" of September 2023).
func (v qemuVersion) physicalAddresses() bool { return v.major > 8 || v.major == 8 && v.minor >= 2 }

// staleCode tells whether code may run that was overwritten while another CPU
// translated it: before QEMU 8.1 ("accel/tcg: Always lock pages before
// translation" of July 2023). The plugin sees it and mends it.
func (v qemuVersion) staleCode() bool { return v.major < 8 || v.major == 8 && v.minor < 1 }

// danglingCallbacks tells whether CPUs may follow pointers to callbacks that
// were freed: before QEMU 8.0 ("plugins: fix optimization in
// plugin_gen_disable_mem_helpers" of February 2023). The plugin keeps its
// callbacks from being freed, if it is loaded before GLib.
func (v qemuVersion) danglingCallbacks() bool { return v.major < 8 }

// pluginVersion is the plugin interface to ask for: QEMU from 9.0 on accepts
// none before 2, and from 9.1 on works as 3 says whatever is asked for.
func (v qemuVersion) pluginVersion() int {
	switch {
	case v.major > 9 || v.major == 9 && v.minor >= 1:
		return 3
	case v.major == 9:
		return 2
	}
	return 1
}

// loadScope compiles the plugin into the cache, and returns QEMU's arguments
// and environment for it.
func (h *Host) loadScope(ctx context.Context, o Options) (args, env []string, err error) {
	version, err := askQEMUVersion(ctx, o.QEMU)
	if err != nil {
		return nil, nil, err
	}
	plugin, err := compileScope(ctx, version.pluginVersion())
	if err != nil {
		return nil, nil, err
	}
	config := filepath.Join(h.folder, "scope.conf")
	if err := os.WriteFile(config, []byte(scopeConfig(o.Shape, h.share("scope"), version)), 0o644); err != nil {
		return nil, nil, err
	}
	args = []string{"-plugin", optionValue(plugin) + ",config=" + optionValue(config)}
	if version.danglingCallbacks() {
		if strings.ContainsAny(plugin, " :") {
			return nil, nil, fmt.Errorf("%s cannot be loaded first by QEMU %v: spaces and colons end a name in LD_PRELOAD; set XDG_CACHE_HOME to a folder without them", plugin, version)
		}
		env = []string{"LD_PRELOAD=" + plugin}
	}
	return args, env, nil
}

func compileScope(ctx context.Context, pluginVersion int) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(scopeSource)
	target := filepath.Join(cache, fmt.Sprintf("numascope-%s-v%d.so", hex.EncodeToString(sum[:6]), pluginVersion))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, compileC(ctx, scopeSource, target, "-shared", "-fPIC", fmt.Sprintf("-DPLUGIN_VERSION=%d", pluginVersion))
}

// scopeConfig tells the plugin the shape: CPUs' nodes, memory ranges, delays.
func scopeConfig(s Shape, shared string, version qemuVersion) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shared %s\n", shared)
	if version.staleCode() {
		fmt.Fprintln(&b, "stale-code")
	}
	cpu := 0
	for i, n := range s.Nodes {
		fmt.Fprintf(&b, "node %d %d\n", i, i)
		for range n.CPUs {
			fmt.Fprintf(&b, "cpu %d %d\n", cpu, i)
			cpu++
		}
		for j := range s.Nodes {
			fmt.Fprintf(&b, "delay %d %d %d\n", i, j, s.ExtraNanos(i, j))
		}
	}
	for _, r := range addressRanges(s, version) {
		fmt.Fprintf(&b, "range %d %d %d\n", r.start, r.size, r.node)
	}
	return b.String()
}

// lowMemory is where the hole below 4 GiB begins (the pc machine's max-ram-below-4g).
const lowMemory = 3 * topology.GiB

type addressRange struct {
	start, size topology.Bytes
	node        int
}

// addressRanges maps the numbers that a QEMU's plugins get for memory to
// nodes. Nodes lie one behind the other. QEMU before 8.2 counts a node's place
// twice: as offset of its block and as address of its region. From 8.2 on the
// number is the physical address: what lies above the hole is shifted up.
func addressRanges(s Shape, version qemuVersion) []addressRange {
	var ranges []addressRange
	var start topology.Bytes
	for i, n := range s.Nodes {
		end := start + n.Memory
		switch {
		case n.Memory == 0:
		case !version.physicalAddresses():
			ranges = append(ranges, addressRange{2 * start, n.Memory, i})
		default:
			if start < lowMemory {
				ranges = append(ranges, addressRange{start, min(end, lowMemory) - start, i})
			}
			if end > lowMemory {
				from := max(start, lowMemory)
				ranges = append(ranges, addressRange{from + 4*topology.GiB - lowMemory, end - from, i})
			}
		}
		start = end
	}
	return ranges
}
