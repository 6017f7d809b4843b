package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Synthetic makes a machine from one line, for tests and what-if questions:
//
//	nodes:4 cores:2 threads:2 memory:1G distances:10,16,28 square
//
// Words, in any order; all but nodes have defaults:
//
//	nodes:4          four nodes 0-3; nodes:0,2-3 names the ids (one id alone: nodes:2-2)
//	sockets:2        nodes are dealt to sockets in equal runs; default: one socket a node
//	cores:2          cores of each node with CPUs (1)
//	threads:2        CPUs of each core (1)
//	l3:4             cores that share an L3 (all of a node)
//	memory:1G        of each node (1G); memory:1G,0,4G gives it node by node
//	memory-only:1    the number of nodes, from the last, without a CPU (0)
//	huge:2M=512      a pool with this number of free pages on every node; may be repeated
//	distances:10,16,28  local, near, far (10,20,20)
//	square, by-socket, flat   which pairs are near (by-socket, if sockets: is given, else flat):
//	                 all but the opposite (0 and 3, 1 and 2); those of one socket; all
//	housekeeping:0-1 CPUs that guests must not get (none)
//
// CPUs are numbered as Linux does on x86: first threads of all cores in node
// order, then all second threads. Memory is free. Memory without CPUs is far
// from everything, and its own row says 255.
func Synthetic(description string) (Topology, error) {
	s := synthetic{sockets: 0, cores: 1, threads: 1, memory: []Bytes{GiB}, distances: []int{10, 20, 20}}
	for _, word := range strings.Fields(description) {
		if err := s.word(word); err != nil {
			return Topology{}, fmt.Errorf("machine %q: %w", abbreviate(description), err)
		}
	}
	if err := s.check(); err != nil {
		return Topology{}, fmt.Errorf("machine %q: %w", abbreviate(description), err)
	}
	return s.build(description)
}

type synthetic struct {
	nodes                            []NodeID
	sockets, cores, threads, l3, dry int // dry: nodes without CPUs
	memory                           []Bytes
	pools                            []HugePagePool
	distances                        []int
	layout                           string
	housekeeping                     CPUSet
}

func (s *synthetic) word(word string) (err error) {
	key, value, _ := strings.Cut(word, ":")
	switch key {
	case "nodes":
		err = s.nodeList(value)
	case "sockets":
		s.sockets, err = count(value)
	case "cores":
		s.cores, err = count(value)
	case "threads":
		s.threads, err = count(value)
	case "l3":
		s.l3, err = count(value)
	case "memory-only":
		s.dry, err = count(value)
	case "memory":
		s.memory, err = each(value, ParseBytes)
	case "distances":
		s.distances, err = each(value, count)
	case "huge":
		err = s.pool(value)
	case "housekeeping":
		s.housekeeping, err = ParseSet[CPUID](value)
	case "square", "by-socket", "flat":
		s.layout = key
	default:
		return fmt.Errorf(
			"unknown word %q; allowed: nodes, sockets, cores, threads, l3, memory, memory-only, huge, distances, "+
				"housekeeping, square, by-socket, flat",
			word,
		)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (s *synthetic) nodeList(value string) error {
	if n, err := count(value); err == nil {
		if n < 1 || n > maxNodes {
			return fmt.Errorf("%d; allowed: 1 to %d", n, maxNodes)
		}
		s.nodes = Range[NodeID](0, NodeID(n-1)).IDs()
		return nil
	}
	ids, err := ParseSet[NodeID](value)
	s.nodes = ids.IDs()
	return err
}

func (s *synthetic) pool(value string) error {
	size, pages, _ := strings.Cut(value, "=")
	bytes, err1 := ParseBytes(size)
	n, err2 := count(pages)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	total := uint64(n) //nolint:gosec // count accepts no negative number
	s.pools = append(s.pools, HugePagePool{Size: bytes, Total: total, Free: total})
	return nil
}

// each reads a list separated by commas.
func each[T any](list string, parse func(string) (T, error)) ([]T, error) {
	var values []T
	for _, item := range strings.Split(list, ",") {
		v, err := parse(item)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

func count(text string) (int, error) {
	v, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number from 0 to 65535", text)
	}
	return int(v), nil
}

// check also fills the defaults that depend on other words.
func (s *synthetic) check() error {
	n := len(s.nodes)
	if s.layout == "" {
		s.layout = "flat"
		if s.sockets > 0 {
			s.layout = "by-socket"
		}
	}
	if s.sockets == 0 {
		s.sockets = n
	}
	if s.l3 == 0 {
		s.l3 = s.cores
	}
	if len(s.distances) == 2 {
		s.distances = append(s.distances, s.distances[1])
	}
	switch {
	case n == 0:
		return errors.New("nodes: missing; for example nodes:4")
	case s.cores < 1 || s.threads < 1 || s.l3 < 1:
		return errors.New("cores, threads, l3: must be at least 1")
	case s.dry >= n:
		return fmt.Errorf("memory-only: %d of %d nodes; at least one must have CPUs", s.dry, n)
	case (n-s.dry)*s.cores*s.threads > maxCPUs:
		return fmt.Errorf("%d CPUs; allowed: up to %d", (n-s.dry)*s.cores*s.threads, maxCPUs)
	case s.sockets > n:
		return fmt.Errorf("sockets: %d for %d nodes", s.sockets, n)
	case len(s.memory) != 1 && len(s.memory) != n:
		return fmt.Errorf("memory: %d amounts; allowed: one for all, or one for each of the %d nodes", len(s.memory), n)
	case len(s.distances) != 3 || s.distances[0] < 1 || s.distances[1] < 1 || s.distances[2] < 1:
		return errors.New("distances: allowed: local,near or local,near,far, each at least 1")
	}
	return nil
}

func (s *synthetic) build(description string) (Topology, error) {
	t := Topology{Housekeeping: s.housekeeping, Source: "synthetic " + description}
	var cpus []SeenCPU
	wet := len(s.nodes) - s.dry
	for i, id := range s.nodes {
		n := Node{ID: id, Memory: s.memory[min(i, len(s.memory)-1)], HugePages: s.pools, Distances: map[NodeID]int{}}
		n.Free = n.Memory
		for j, to := range s.nodes {
			n.Distances[to] = s.distance(i, j)
		}
		if i < wet {
			seen := s.nodeCPUs(i, wet)
			for _, c := range seen {
				n.CPUs = n.CPUs.With(c.ID)
			}
			cpus = append(cpus, seen...)
		}
		t.Nodes = append(t.Nodes, n)
	}
	return Assemble(t, cpus)
}

// nodeCPUs makes the CPUs of the i-th node of those with CPUs.
func (s *synthetic) nodeCPUs(i, wet int) []SeenCPU {
	var cpus []SeenCPU
	all := wet * s.cores
	thread := func(core, t int) CPUID { return CPUID(t*all + i*s.cores + core) }
	for core := range s.cores {
		var l3 []CPUID
		first := core / s.l3 * s.l3
		for sharer := first; sharer < min(first+s.l3, s.cores); sharer++ {
			for t := range s.threads {
				l3 = append(l3, thread(sharer, t))
			}
		}
		for t := range s.threads {
			cpus = append(cpus,
				SeenCPU{ID: thread(core, t), Socket: s.socket(i), Core: i*s.cores + core, L3: SetOf(l3...)})
		}
	}
	return cpus
}

func (s *synthetic) socket(i int) int { return i * s.sockets / len(s.nodes) }

func (s *synthetic) distance(i, j int) int {
	n := len(s.nodes)
	wet := n - s.dry
	local, near, far := s.distances[0], s.distances[1], s.distances[2]
	switch {
	case i == j:
		return local
	case i >= wet:
		return slitUnreachable
	case j >= wet:
		return far
	case s.layout == "square" && i+j == wet-1 && wet > 2:
		return far
	case s.layout == "by-socket" && s.socket(i) != s.socket(j):
		return far
	}
	return near
}
