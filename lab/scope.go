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
	scopeNodes    = 64
	scopeHead     = 7 // magic, cpus, nodes, mode, active, reset, was_reset
	wordBytes     = 8
	modeWord      = 3
	activeWord    = 4
	resetWord     = 5
	wasResetWord  = 6
	scopeNodeWord = scopeHead
	scopeMissWord = scopeHead + scopeNodes
)

// Scope is the access counter of a lab. It is a file, so it can be opened
// outside the lab and inside it.
type Scope struct{ path string }

// OpenScope opens the counter's file; InLab when inside.
func OpenScope(path string) (*Scope, error) {
	s := &Scope{path}
	if magic, err := s.word(0); err != nil || magic != scopeMagic {
		return nil, fmt.Errorf("%s is no access counter (%w); it exists in a lab that was booted with --scope", path, errors.Join(err, errors.New("no magic")))
	}
	return s, nil
}

// Scope returns the lab's access counter; it fails if the lab was booted without.
func (h *Host) Scope() (*Scope, error) { return OpenScope(h.share("scope")) }

// Misses is a count of accesses that missed the modelled cache of 1 MiB per
// CPU: a row per CPU, a column per node.
type Misses struct {
	Nodes []topology.NodeID `json:"nodes"`
	CPUs  [][]uint64        `json:"cpus"`
}

// Read returns all counts so far.
func (s *Scope) Read() (Misses, error) {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return Misses{}, err
	}
	word := func(i uint64) uint64 { return binary.LittleEndian.Uint64(data[i*wordBytes:]) }
	cpus, nodes := word(1), word(2)
	if nodes > scopeNodes || uint64(len(data)) < (scopeMissWord+cpus*scopeNodes)*wordBytes {
		return Misses{}, fmt.Errorf("%s: %d CPUs and %d nodes do not fit into %d bytes", s.path, cpus, nodes, len(data))
	}
	var m Misses
	for n := range nodes {
		m.Nodes = append(m.Nodes, topology.NodeID(word(scopeNodeWord+n)))
	}
	for c := range cpus {
		row := make([]uint64, nodes)
		for n := range nodes {
			row[n] = word(scopeMissWord + c*scopeNodes + n)
		}
		m.CPUs = append(m.CPUs, row)
	}
	return m, nil
}

// Set changes the mode and waits until it is in force: when an emulated CPU next falls idle.
func (s *Scope) Set(ctx context.Context, m ScopeMode) error {
	if err := s.write(modeWord, uint64(m)); err != nil {
		return err
	}
	return s.await(ctx, activeWord, uint64(m))
}

// Reset zeroes all counts.
func (s *Scope) Reset(ctx context.Context) error {
	n, err := s.word(resetWord)
	if err != nil {
		return err
	}
	if err := s.write(resetWord, n+1); err != nil {
		return err
	}
	return s.await(ctx, wasResetWord, n+1)
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

func (s *Scope) write(i, v uint64) error {
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	var b [wordBytes]byte
	binary.LittleEndian.PutUint64(b[:], v)
	_, err = f.WriteAt(b[:], int64(i*wordBytes))
	return errors.Join(err, f.Close())
}

//go:embed scope/numascope.c
var scopeSource []byte

// physicalAddresses is the first QEMU whose plugins get guest physical
// addresses. Before, qemu_plugin_hwaddr_phys_addr returned the offset of the
// memory block plus the address of its region (plugins/api.c).
const physicalAddresses = 9

// loadScope compiles the plugin into the cache and returns QEMU's arguments for it.
func (h *Host) loadScope(ctx context.Context, o Options) ([]string, error) {
	major, _, err := qemuVersion(ctx, o.QEMU)
	if err != nil {
		return nil, err
	}
	plugin, err := compileScope(ctx, major)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(h.folder, "scope.conf")
	if err := os.WriteFile(config, []byte(scopeConfig(o.Shape, h.share("scope"), major)), 0o644); err != nil {
		return nil, err
	}
	return []string{"-plugin", plugin + ",config=" + config}, nil
}

func compileScope(ctx context.Context, major int) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	version := 1
	if major >= physicalAddresses {
		version = 2 // the oldest that QEMU 9 and 10 accept
	}
	sum := sha256.Sum256(scopeSource)
	target := filepath.Join(cache, fmt.Sprintf("numascope-%s-v%d.so", hex.EncodeToString(sum[:6]), version))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, compileC(ctx, scopeSource, target, "-shared", "-fPIC", fmt.Sprintf("-DPLUGIN_VERSION=%d", version))
}

// scopeConfig tells the plugin the shape: CPUs' nodes, memory ranges, delays.
func scopeConfig(s Shape, shared string, major int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shared %s\n", shared)
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
	for _, r := range addressRanges(s, major) {
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
// nodes. Nodes lie one behind the other. QEMU 7.2 and 8 count a node's place
// twice: as offset of its block and as address of its region. From 9 on the
// number is the physical address: what lies above the hole is shifted up.
func addressRanges(s Shape, major int) []addressRange {
	var ranges []addressRange
	var start topology.Bytes
	for i, n := range s.Nodes {
		end := start + n.Memory
		switch {
		case n.Memory == 0:
		case major < physicalAddresses:
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
