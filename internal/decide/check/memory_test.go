package check

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	kib = topology.KiB
	mib = topology.MiB
)

func TestPlacement_Reservations(t *testing.T) {
	checkRules(t, []ruleCase{
		{"less than a cell", shared,
			func(s *situation) { s.placed.Reservations[1].Memory = 3 * gib },
			want("reservations guest", "reservations guest")},
		{"more than requested", shared,
			func(s *situation) { s.placed.Reservations[1].Memory = 5 * gib },
			want("reservations guest")},
		{"on another node than the cell", shared, func(s *situation) {
			s.placed.Reservations[0].Memory, s.placed.Reservations[1].Memory = 0, 8*gib
		}, want("reservations guest")},
		{"fewer vCPUs than requested", shared,
			func(s *situation) { s.placed.Reservations[1].VCPUs = 1 },
			want("reservations guest")},
		{"the same node twice", shared, func(s *situation) {
			half := guest.Reservation{Node: 1, Memory: 2 * gib, VCPUs: 1}
			s.placed.Reservations = []guest.Reservation{s.placed.Reservations[0], half, half}
		}, want("reservations node 1")},
		{"unknown node", shared, func(s *situation) {
			s.placed.Reservations = append(s.placed.Reservations, guest.Reservation{Node: 9, VCPUs: 1})
		}, want("reservations node 9")},
		{"memory on a node that is not the guest's", shared, func(s *situation) {
			s.placed.Nodes, s.placed.Cells[1].Nodes = nodes("0"), nodes("0")
		}, want("nodes cell 1", "cpus vCPU 2", "cpus vCPU 3", "reservations node 1")},
		{"exclusive CPU of another node", alone,
			func(s *situation) { s.placed.Reservations[0].Exclusive = cpus("1,8-12") },
			want("reservations node 1")},
		{"pages of another size", alone,
			func(s *situation) { s.placed.Reservations[0].PageSize = 0 },
			want("reservations node 1")},
		{"CPUs of a CPU-only node", shared, lendCPUs, nil},
	})
}

// Two 1 GiB pages of each node are free. Others' memory is what the node lost.
func TestPlacement_MemoryOfTheNode(t *testing.T) {
	small := func(node topology.NodeID, bytes topology.Bytes) func(*situation) {
		return func(s *situation) { s.promise(guest.Reservation{Node: node, Memory: bytes}) }
	}
	checkRules(t, []ruleCase{
		{"small pages of others fill the node", alone, small(1, 14*gib), nil},
		{"small pages of others exceed the node", alone, small(1, 14*gib+4*kib), want("memory node 1")},
		{"small pages of others exceed another node", alone, small(0, 20*gib), nil},
		{"what others use counts where it is more than promised", alone, func(s *situation) {
			s.host.Guests[0].Seen.MemoryByNode = memoryOn(1, 15*gib)
		}, want("memory node 1")},
		{"smaller than the guest", alone,
			func(s *situation) { s.host.Topology.Nodes[1].Memory = gib },
			want("memory node 1")},
	})
}

func memoryOn(node topology.NodeID, bytes topology.Bytes) topology.MemoryByNode {
	return topology.MemoryByNode{node: bytes}
}

// Node 1 has 16 GiB: 2 GiB in its pool, 1 GiB to stay free, 4 GiB of the guest: 9 GiB are left.
func TestPlacement_SmallPages(t *testing.T) {
	with := func(changes ...func(*situation)) func(*situation) {
		return func(s *situation) {
			keep := gib
			s.policy.KeepFree = &keep
			for _, change := range changes {
				change(s)
			}
		}
	}
	promise := func(node topology.NodeID, bytes, page topology.Bytes) func(*situation) {
		return func(s *situation) { s.promise(guest.Reservation{Node: node, Memory: bytes, PageSize: page}) }
	}
	free := func(bytes, reclaimable topology.Bytes) func(*situation) {
		return func(s *situation) {
			s.host.Topology.Nodes[1].Free, s.host.Topology.Nodes[1].Reclaimable = bytes, reclaimable
		}
	}
	touched := func(node topology.NodeID, bytes topology.Bytes) func(*situation) {
		return func(s *situation) {
			old := &s.host.Guests[0]
			old.Placement.Reservations = append(old.Placement.Reservations, guest.Reservation{Node: 1, Memory: 4 * gib})
			old.Seen.MemoryByNode = memoryOn(node, bytes)
		}
	}
	checkRules(t, []ruleCase{
		{"promises fill the node", shared, with(promise(1, 9*gib, 0)), nil},
		{"promises exceed the node", shared, with(promise(1, 9*gib+4*kib, 0)), want("memory node 1")},
		{"promises exceed another node", shared, with(promise(2, 20*gib, 0)), nil},
		{"huge pages fit the pool", shared, with(promise(1, 9*gib, 0), promise(1, 2*gib, gib)), nil},
		{"huge pages that the pool lacks come from small pages", shared,
			with(promise(1, 8*gib, 0), promise(1, 3*gib, gib)),
			nil},
		{"huge pages that the pool lacks exceed the node", shared,
			with(promise(1, 8*gib+4*kib, 0), promise(1, 3*gib, gib)),
			want("memory node 1")},
		{"a broken huge page takes a whole one", shared,
			with(promise(1, 8*gib+4*kib, 0), promise(1, 2*gib+4*kib, gib)),
			want("memory node 1")},
		{"huge pages of a size without a pool", shared, with(promise(1, 8*gib, 0), promise(1, gib, 2*mib)), nil},
		{"huge pages of a size without a pool exceed the node", shared,
			with(promise(1, 8*gib+4*kib, 0), promise(1, gib, 2*mib)),
			want("memory node 1")},
		{"huge pages of another node", shared, with(promise(1, 9*gib, 0), promise(0, 3*gib, gib)), nil},
		{"free memory for the guest alone", shared, with(free(5*gib, 0)), nil},
		{"less free memory than the guest needs", shared, with(free(5*gib-4*kib, 0)), want("memory node 1")},
		{"page cache counts as free", shared, with(free(3*gib, 2*gib)), nil},
		{"page cache is too small", shared, with(free(3*gib, 2*gib-4*kib)), want("memory node 1")},
		{"free memory for untouched promises", shared, with(free(7*gib, 0), promise(1, 2*gib, 0)), nil},
		{"less free memory than untouched promises", shared,
			with(free(7*gib-4*kib, 0), promise(1, 2*gib, 0)),
			want("memory node 1")},
		{"touched promises need no free memory", shared, with(free(6*gib, 0), touched(1, 3*gib)), nil},
		{"the untouched rest needs free memory", shared,
			with(free(6*gib-4*kib, 0), touched(1, 3*gib)),
			want("memory node 1")},
		{"less free memory than untouched huge pages", shared,
			with(free(6*gib-4*kib, 0), promise(1, 3*gib, gib)),
			want("memory node 1")},
		{"free memory is not known", shared, with(func(s *situation) {
			for i := range s.host.Topology.Nodes {
				s.host.Topology.Nodes[i].Free = 0
			}
		}), nil},
		{"a node without free memory", shared, with(free(0, 0)), want("memory node 1")},
	})
}

func TestPlacement_HugePages(t *testing.T) {
	pool := func(size topology.Bytes, free uint64) func(*situation) {
		return func(s *situation) {
			p := &s.host.Topology.Nodes[1].HugePages
			*p = append(*p, topology.HugePagePool{Size: size, Total: free, Free: free})
		}
	}
	mayGrow := func(s *situation) { upTo := gib; s.policy.GrowHugePagesUpTo = &upTo }
	with := func(changes ...func(*situation)) func(*situation) {
		return func(s *situation) {
			keep := topology.Bytes(0)
			s.policy.KeepFree = &keep
			for _, change := range changes {
				change(s)
			}
		}
	}
	promise := func(node topology.NodeID, bytes, page topology.Bytes) func(*situation) {
		return func(s *situation) { s.promise(guest.Reservation{Node: node, Memory: bytes, PageSize: page}) }
	}
	oneFree := func(s *situation) { s.host.Topology.Nodes[1].HugePages[0].Free = 1 }
	checkRules(t, []ruleCase{
		{"pool too small", alone, with(oneFree), want("huge_pages node 1")},
		{"pool too small but may grow", alone, with(oneFree, mayGrow), nil},
		{"pool promised to another guest", alone, with(promise(1, gib, gib)), want("huge_pages node 1")},
		{"pool promised to another guest but may grow", alone, with(promise(1, gib, gib), mayGrow), nil},
		{"pool of another guest's touched pages", alone, with(func(s *situation) {
			old := &s.host.Guests[0]
			old.Placement.PageSize = gib
			pages := guest.Reservation{Node: 1, Memory: 2 * gib, PageSize: gib}
			old.Placement.Reservations = append(old.Placement.Reservations, pages)
			old.Seen.MemoryByNode = memoryOn(1, 2*gib)
		}), nil},
		{"pool of another node promised", alone, with(promise(0, 2*gib, gib)), nil},
		{"pool of another size promised", alone, with(pool(2*mib, 512), promise(1, gib, 2*mib)), nil},
		{"pool of another size promised beyond it", alone, with(pool(2*mib, 511), promise(1, gib, 2*mib)), nil},
		{"pool of another size does not help", alone, with(oneFree, pool(2*mib, 512)), want("huge_pages node 1")},
		{"full pool needs no small pages", alone, with(promise(1, 14*gib, 0)), nil},
		{"growth takes the last small pages", alone, with(oneFree, mayGrow, promise(1, 13*gib, 0)), nil},
		{"growth exceeds the small pages", alone, with(oneFree, mayGrow, promise(1, 13*gib+4*kib, 0)),
			want("memory node 1")},
		{"growth exceeds the free memory", alone,
			with(oneFree, mayGrow, func(s *situation) { s.host.Topology.Nodes[1].Free = gib - 4*kib }),
			want("memory node 1")},
		{"growth takes the last free memory", alone,
			with(oneFree, mayGrow, func(s *situation) { s.host.Topology.Nodes[1].Free = gib }),
			nil},
	})
}

// What the guest holds now becomes free when it moves, and is not in the way of its next placement.
func TestPlacement_GivesBackOwnMemory(t *testing.T) {
	self := func(placed bool, page topology.Bytes, bytes topology.Bytes) func(*situation) {
		return func(s *situation) {
			g := inventory.Guest{Name: "new", Config: inventory.Config{PageSize: page}}
			g.Seen.MemoryByNode = memoryOn(1, bytes)
			if placed {
				p := s.placed
				p.PageSize, g.Config.PageSize = page, 3*gib // the intent counts, not the configuration
				g.Placement = &p
			}
			s.host.Guests = append(s.host.Guests, g)
		}
	}
	with := func(changes ...func(*situation)) func(*situation) {
		return func(s *situation) {
			keep := topology.Bytes(0)
			s.policy.KeepFree = &keep
			for _, change := range changes {
				change(s)
			}
		}
	}
	free := func(bytes topology.Bytes) func(*situation) {
		return func(s *situation) { s.host.Topology.Nodes[1].Free = bytes }
	}
	empty := func(s *situation) { s.host.Topology.Nodes[1].HugePages[0].Free = 0 }
	checkRules(t, []ruleCase{
		{"small pages, bound", shared, with(free(gib), self(true, 0, 3*gib)), nil},
		{"small pages, unmanaged", shared, with(free(gib), self(false, 0, 3*gib)), nil},
		{"too few small pages", shared, with(free(gib), self(true, 0, 3*gib-4*kib)), want("memory node 1")},
		{"huge pages do not become small ones", shared, with(free(gib), self(true, gib, 3*gib)), want("memory node 1")},
		{"huge pages, bound", alone, with(empty, self(true, gib, 2*gib)), nil},
		{"huge pages, unmanaged", alone, with(empty, self(false, gib, 2*gib)), nil},
		{"too few huge pages", alone, with(empty, self(true, gib, gib)), want("huge_pages node 1")},
		{"small pages do not become huge ones", alone, with(empty, self(true, 0, 2*gib)), want("huge_pages node 1")},
	})
}
