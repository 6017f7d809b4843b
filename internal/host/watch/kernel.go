package watch

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// kernel measures the host as a whole, from the kernel's own figures.
type kernel struct {
	cpu, memory, io *linux.CachedFile // of /proc/pressure
	vmstat          *linux.CachedFile
	before          linux.Migrations
	seen            bool // before is from an earlier sample
}

func newKernel(k *linux.FileCache) *kernel {
	return &kernel{
		cpu:    k.File("proc/pressure/cpu"),
		memory: k.File("proc/pressure/memory"),
		io:     k.File("proc/pressure/io"),
		vmstat: k.Table("proc/vmstat"),
	}
}

func (k *kernel) Close() {
	for _, f := range []*linux.CachedFile{k.cpu, k.memory, k.io, k.vmstat} {
		f.Close()
	}
}

func (k *kernel) pressure(g *gaps) inventory.Pressure {
	var p inventory.Pressure
	p.CPU, _ = over10s(k.cpu, g, "pressure on CPUs")
	p.Memory, p.MemoryFull = over10s(k.memory, g, "pressure on memory")
	p.IO, _ = over10s(k.io, g, "pressure on I/O")
	return p
}

// over10s reads a pressure file; nil where the kernel has none or has pressure
// switched off (psi=0), which is no gap.
func over10s(f *linux.CachedFile, g *gaps, what string) (some, full *float64) {
	data, err := f.Read()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	var s, a linux.Pressure
	if err == nil {
		s, a, err = linux.ParsePressure(data)
	}
	g.set(inventory.PressureUnread, inventory.HostRef(), what, err)
	if err != nil {
		return nil, nil
	}
	return &s.Over10s, &a.Over10s
}

// moves returns the pages moved since the previous call; nothing the first
// time.
func (k *kernel) moves(g *gaps) inventory.KernelMoves {
	data, err := k.vmstat.Read()
	var now linux.Migrations
	if err == nil {
		now, err = linux.ParseVMStat(data)
	}
	g.set(inventory.MovesUnread, inventory.HostRef(), "pages moved between nodes", err)
	if err != nil {
		k.seen = false // the next figures would cover more than a window
		return inventory.KernelMoves{}
	}
	since, seen := now.Since(k.before), k.seen
	k.before, k.seen = now, true
	if !seen {
		return inventory.KernelMoves{}
	}
	page := topology.Bytes(os.Getpagesize()) // all these counters are in small pages
	return inventory.KernelMoves{
		Moved: topology.Bytes(since.Success) * page, Failed: topology.Bytes(since.Fail) * page,
		Balancing: topology.Bytes(since.BalancingMoved) * page,
	}
}
