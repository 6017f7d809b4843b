package labcounter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Mode is the access counter's mode.
type Mode uint64

// Modes of the access counter.
const (
	Off   Mode = iota // nothing is instrumented: full speed
	Count             // misses are counted
	Felt              // misses are counted, and delayed by distance
)

// ParseMode reads "off", "count" or "felt".
func ParseMode(s string) (Mode, error) {
	for m, name := range []string{"off", "count", "felt"} {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("mode %q: allowed are off, count, felt", s)
}

// Path is the counter's file inside the lab.
const Path = "/lab/scope"

// Layout of the file, in words; lab/scope/numascope.c writes it.
const (
	magic     = 0x45504f4353414d55
	maxCPUs   = 256
	maxNodes  = 64
	wordBytes = 8

	cpusWord   = 1
	nodesWord  = 2
	modeWord   = 3 // the requested mode
	activeWord = 4 // the mode in effect
	nodeWord   = 8 // the node IDs
	missWord   = nodeWord + maxNodes
	zeroWord   = missWord + maxCPUs*maxNodes // value of missWord at the last Reset
	words      = zeroWord + maxCPUs*maxNodes
)

// Counter is the access counter of a lab. It is a file, so it can be opened
// outside the lab and inside it.
type Counter struct{ path string }

// Open opens the counter's file: Path inside the lab. The error wraps
// os.ErrNotExist if the file does not exist.
func Open(path string) (*Counter, error) {
	c := &Counter{path}
	if found, err := c.word(0); err != nil || found != magic {
		return nil, fmt.Errorf("%s is no access counter (%w); it exists inside a lab",
			path, errors.Join(err, errors.New("no magic")))
	}
	return c, nil
}

// Misses is a count of accesses that missed the modelled cache of 1 MiB per
// CPU: a row per CPU, a column per node.
type Misses struct {
	Nodes []topology.NodeID `json:"nodes"`
	CPUs  [][]uint64        `json:"cpus"`
}

// Read returns all counts since the last Reset.
func (c *Counter) Read() (Misses, error) {
	data, err := c.whole()
	if err != nil {
		return Misses{}, err
	}
	word := func(i uint64) uint64 { return binary.LittleEndian.Uint64(data[i*wordBytes:]) }
	cpus, nodes := word(cpusWord), word(nodesWord)
	if err := checkSize(c.path, cpus, nodes); err != nil {
		return Misses{}, err
	}
	var m Misses
	for n := range nodes {
		m.Nodes = append(m.Nodes, topology.NodeID(word(nodeWord+n)))
	}
	for cpu := range cpus {
		row := make([]uint64, nodes)
		for n := range nodes {
			cell := cpu*maxNodes + n
			row[n] = word(missWord+cell) - word(zeroWord+cell)
		}
		m.CPUs = append(m.CPUs, row)
	}
	return m, nil
}

// checkSize refuses numbers of CPUs and nodes for which the file has no room.
func checkSize(path string, cpus, nodes uint64) error {
	if cpus > maxCPUs || nodes > maxNodes {
		return fmt.Errorf("%s reports %d CPUs and %d nodes; it has room for %d and %d", path, cpus, nodes, maxCPUs,
			maxNodes)
	}
	return nil
}

// Set changes the mode and waits until it is in effect: until the lab's first
// CPU next falls idle or returns from an interrupt.
func (c *Counter) Set(ctx context.Context, m Mode) error {
	if err := c.write(modeWord, binary.LittleEndian.AppendUint64(nil, uint64(m))); err != nil {
		return err
	}
	const poll = 30 * time.Millisecond
	for {
		if active, err := c.word(activeWord); err != nil || active == uint64(m) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the access counter does not change its mode: %w", ctx.Err())
		case <-time.After(poll):
		}
	}
}

// Reset makes all counts start at zero, for all readers of Read. The running
// CPUs write the counts, so Reset records their present values as zero.
func (c *Counter) Reset() error {
	data, err := c.whole()
	if err != nil {
		return err
	}
	return c.write(zeroWord, data[missWord*wordBytes:zeroWord*wordBytes])
}

func (c *Counter) whole() ([]byte, error) {
	data, err := os.ReadFile(c.path)
	if err != nil {
		return nil, err
	}
	if len(data) != words*wordBytes {
		return nil, fmt.Errorf("%s has %d bytes, an access counter has %d", c.path, len(data), words*wordBytes)
	}
	return data, nil
}

func (c *Counter) word(i uint64) (uint64, error) {
	f, err := os.Open(c.path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // the file was only read
	var b [wordBytes]byte
	_, err = f.ReadAt(b[:], int64(i*wordBytes))
	return binary.LittleEndian.Uint64(b[:]), err
}

func (c *Counter) write(word uint64, data []byte) error {
	f, err := os.OpenFile(c.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, int64(word*wordBytes))
	return errors.Join(err, f.Close())
}
