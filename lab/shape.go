// Package lab boots a real multi-node NUMA host on any machine, under QEMU's
// software emulation: a real kernel with real per-node memory
// and distances, real KVM, real libvirt. Its root is the root file system of
// the machine it runs on, read-only, below a memory file system.
//
// Distance is felt: a plugin delays each cache miss by the extra cost of the
// memory it reaches, so that unmodified programs, inside KVM guests too, run
// slower on far memory; and it counts misses by CPU and node.
package lab

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/topology"
)

// Shape is the machine that a lab imitates.
type Shape struct {
	Name string `json:"name"`
	// About names the machine that the shape imitates, with the source of its
	// figures.
	About string `json:"about,omitempty"`
	Nodes []Node `json:"nodes"`
	// Threads is the number of SMT threads of a core; default 1.
	Threads int `json:"threads,omitempty"`
	// L3PerNode is the number of last-level cache domains of each node; default 1.
	// More than one needs equal nodes: QEMU shows dies of equal size only.
	L3PerNode int `json:"l3_per_node,omitempty"`
	// Distances is the SLIT, a row per node; default 10 and 20.
	Distances [][]int `json:"distances,omitempty"`
	// LatencyNanos is the duration of an access on the imitated machine, a row per
	// CPU node; felt distance follows it. Default: SLIT x 8.5, since real
	// 8-node processors have about 85 ns at distance 10.
	LatencyNanos [][]float64 `json:"latency_ns,omitempty"`
	// DelayScale stretches the felt extra cost: the emulated CPU is slower than
	// a real one, so far memory must be too. Default DefaultDelayScale.
	DelayScale float64 `json:"delay_scale,omitempty"`
	// DelayLocal delays local accesses too, by their full cost. The progress of
	// a program then depends on distance alone, and hardly on how slow or busy
	// the emulation is: for measurements, at the price of a slower lab.
	DelayLocal bool `json:"delay_local,omitempty"`
	// Marked counts and delays only the accesses that a program marks (scope/numascope.c
	// says how). Kernels run at full speed, also while they change what a VM has: the lab
	// is some thirty times slower than hardware already.
	Marked bool `json:"marked,omitempty"`
	// Prefetch lets a program that reads memory in order wait for the budget of the memory alone
	// and not for its latency, as the prefetchers of processors do.
	Prefetch bool `json:"prefetch,omitempty"`
	// Slowdown is how many seconds pass outside in one second of the lab; default 1. Emulated CPUs and the kernels on
	// them seem faster inside by this factor, and delays of memory last longer outside: two real CPUs can then carry
	// several emulated ones that work at once (slowclock/slowclock.c says how).
	Slowdown int `json:"slowdown,omitempty"`
}

// Node is one NUMA node of a shape.
type Node struct {
	CPUs   int            `json:"cpus"`   // 0: memory only
	Memory topology.Bytes `json:"memory"` // 0: CPUs only
	// PerMS is the number of misses that the node's memory serves in a millisecond, of all CPUs
	// together; 0: any number. It limits while distance is felt.
	PerMS float64 `json:"misses_per_ms,omitempty"`
}

// leastPerMS is the least budget of a node's memory: a miss takes half a second of it.
const leastPerMS = 0.002

// DefaultDelayScale makes STREAM-like programs in a KVM guest feel about the
// latency ratios of the shape (docs/benchmarks.md).
const DefaultDelayScale = 1

const (
	maxNodes     = 64
	maxCPUs      = 255 // of QEMU's pc machine
	nanosPerSLIT = 8.5
)

//go:embed shapes/*.yaml
var shapeFiles embed.FS

// Shapes returns the built-in shapes, by name.
func Shapes() ([]Shape, error) {
	files, err := shapeFiles.ReadDir("shapes")
	if err != nil {
		return nil, err
	}
	var all []Shape
	for _, f := range files {
		s, err := FindShape(strings.TrimSuffix(f.Name(), ".yaml"))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// FindShape returns a built-in shape by its name, or reads a file.
func FindShape(name string) (Shape, error) {
	if f, err := shapeFiles.Open(path.Join("shapes", name+".yaml")); err == nil {
		defer f.Close()
		return ParseShape(f)
	}
	f, err := os.Open(name)
	if err != nil {
		return Shape{}, fmt.Errorf(
			"shape %q: neither built in nor a file: %w; 'numavisor lab shapes' lists the built-in ones", name, err)
	}
	defer f.Close()
	s, err := ParseShape(f)
	if err != nil {
		return s, fmt.Errorf("shape file %s: %w", name, err)
	}
	return s, nil
}

var shapeFormat = strictyaml.Format{Kind: "shape", MaxBytes: 1 << 20}

// ParseShape reads a shape in YAML or JSON and checks it.
func ParseShape(r io.Reader) (Shape, error) {
	var s Shape
	check := func() error {
		s = s.withDefaults()
		return s.Validate()
	}
	_, err := strictyaml.Decode(r, shapeFormat, &s, check)
	return s, err
}

func (s Shape) withDefaults() Shape {
	s.Threads, s.L3PerNode, s.Slowdown = max(s.Threads, 1), max(s.L3PerNode, 1), max(s.Slowdown, 1)
	if s.DelayScale == 0 {
		s.DelayScale = DefaultDelayScale
	}
	if s.Distances == nil && len(s.Nodes) <= maxNodes {
		for i := range s.Nodes {
			row := make([]int, len(s.Nodes))
			for j := range row {
				row[j] = 20
			}
			row[i] = 10
			s.Distances = append(s.Distances, row)
		}
	}
	return s
}

// Validate returns an error for each field with which no lab can be booted.
func (s Shape) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	n := len(s.Nodes)
	if n < 1 || n > maxNodes {
		return fmt.Errorf("nodes: %d given; allowed are 1 to %d", n, maxNodes)
	}
	for i, node := range s.Nodes {
		switch {
		case node.CPUs < 0 || node.CPUs%max(s.Threads, 1) != 0:
			fail("nodes[%d].cpus: %d; allowed are multiples of threads (%d)", i, node.CPUs, s.Threads)
		case node.CPUs == 0 && node.Memory == 0:
			fail("nodes[%d]: has neither CPUs nor memory", i)
		case node.Memory%(2*topology.MiB) != 0:
			fail("nodes[%d].memory: %d bytes; allowed are multiples of 2M", i, node.Memory)
		case i == 0 && node.Memory < 512*topology.MiB:
			fail("nodes[0].memory: %v; the first node boots the kernel and needs 512M", node.Memory)
		}
	}
	if s.CPUs() < 1 || s.CPUs() > maxCPUs {
		fail("nodes: %d CPUs in all; allowed are 1 to %d", s.CPUs(), maxCPUs)
	}
	if s.L3PerNode > 1 && (!s.equalNodes() || s.Nodes[0].CPUs%(s.L3PerNode*max(s.Threads, 1)) != 0) {
		fail("l3_per_node: %d; needs nodes of equal size whose CPUs it divides: QEMU shows dies of one size only",
			s.L3PerNode)
	}
	for i, node := range s.Nodes {
		if node.PerMS != 0 && !(node.PerMS >= leastPerMS && node.PerMS <= 1e6) {
			fail("nodes[%d].misses_per_ms: %v; allowed are 0 for no limit, and %v to 1000000", i, node.PerMS, leastPerMS)
		}
	}
	if s.Slowdown < 0 || s.Slowdown > maxSlowdown {
		fail("slowdown: %d; allowed are 1 to %d", s.Slowdown, maxSlowdown)
	}
	if s.DelayScale < 0 || math.IsNaN(s.DelayScale) || s.DelayScale > 1000 {
		fail("delay_scale: %v; allowed are 0 to 1000", s.DelayScale)
	}
	errs = append(errs, s.checkDistances()...)
	return errors.Join(errs...)
}

func (s Shape) checkDistances() []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	n := len(s.Nodes)
	if len(s.Distances) != n {
		return []error{fmt.Errorf("distances: %d rows for %d nodes", len(s.Distances), n)}
	}
	for i, row := range s.Distances {
		if len(row) != n {
			fail("distances[%d]: %d figures for %d nodes", i, len(row), n)
			continue
		}
		for j, d := range row {
			if (i == j) != (d == 10) || d < 10 || d > 255 {
				fail("distances[%d][%d]: %d; allowed are 10 for a node itself, 11 to 255 for others", i, j, d)
			}
		}
	}
	if s.LatencyNanos != nil && len(s.LatencyNanos) != n {
		fail("latency_ns: %d rows for %d nodes", len(s.LatencyNanos), n)
	}
	for i, row := range s.LatencyNanos {
		if len(row) != n && !(i < n && s.Nodes[i].CPUs == 0 && len(row) == 0) {
			fail("latency_ns[%d]: %d figures for %d nodes", i, len(row), n)
		}
		for j, ns := range row {
			if !(ns >= 0 && ns < 1e6) {
				fail("latency_ns[%d][%d]: %v; allowed are 0 to 1000000", i, j, ns)
			}
		}
	}
	return errs
}

// HasKVM reports whether VMs can run in the lab: not where SMT threads or
// several L3 domains are shown.
func (s Shape) HasKVM() bool { return s.Threads <= 1 && s.L3PerNode <= 1 }

// CPUs returns the number of CPUs in all.
func (s Shape) CPUs() int {
	sum := 0
	for _, n := range s.Nodes {
		sum += n.CPUs
	}
	return sum
}

// Memory returns the memory of all nodes.
func (s Shape) Memory() topology.Bytes {
	var sum topology.Bytes
	for _, n := range s.Nodes {
		sum += n.Memory
	}
	return sum
}

func (s Shape) equalNodes() bool {
	return !slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.CPUs != s.Nodes[0].CPUs })
}

// ExtraNanos is the delay in nanoseconds that the lab adds to a miss from a CPU
// of one node to memory of another: the excess over the cheapest local access
// of the host. Where local accesses are delayed too, it is the full cost.
func (s Shape) ExtraNanos(from, to int) int64 {
	best := math.Inf(1)
	for i, n := range s.Nodes {
		if n.CPUs > 0 { // a node that lacks one makes no local access
			best = min(best, s.Latency(i, i))
		}
	}
	if s.DelayLocal {
		best = 0
	}
	return int64(math.Round(max(0, s.Latency(from, to)-best) * s.DelayScale))
}

// Latency is the cost of an access from a CPU of one node to memory of another
// on the imitated machine, in nanoseconds.
func (s Shape) Latency(from, to int) float64 {
	if from < len(s.LatencyNanos) && to < len(s.LatencyNanos[from]) && s.LatencyNanos[from][to] > 0 {
		return s.LatencyNanos[from][to]
	}
	return float64(s.Distances[from][to]) * nanosPerSLIT
}
