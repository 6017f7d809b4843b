package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrPagesInUse means that huge pages that were added for a guest cannot be removed from
// the pools now. They stay recorded.
var ErrPagesInUse = errors.New("they are in use")

// growPools enlarges huge page pools by the pages that they lack for a guest,
// and records the added pages, so that they can be given back.
func (h *Host) growPools(ctx context.Context, name string, short []plan.Step) error {
	for _, s := range short {
		err := ctx.Err()
		if err == nil {
			err = h.growPool(name, s)
		}
		if err != nil {
			return errors.Join(err, h.givePoolsBack(name, nil, topology.NodeSet{}))
		}
	}
	return nil
}

func (h *Host) growPool(name string, s plan.Step) error {
	got, err := h.Kernel.GrowPool(s.Node, s.PageSize, s.Pages)
	if err == nil && got < s.Pages {
		err = fmt.Errorf(
			"node %d: the kernel added %d of the %d pages of %v that the pool lacks: free memory is fragmented; "+
				"reserve pages at boot or use smaller ones",
			s.Node,
			got,
			s.Pages,
			s.PageSize,
		)
	}
	if got == 0 {
		return err
	}
	grown := claim.Grown{Node: s.Node, Size: s.PageSize, Pages: got}
	if unnoted := h.Ledger.PutGrown(name, []claim.Grown{grown}); unnoted != nil {
		_, stuck := h.Kernel.ShrinkPool(grown.Node, grown.Size, grown.Pages)
		return errors.Join(err, unnoted, stuck)
	}
	return err
}

// poolShortages lists the pages that the pools lack for a placement. Free pages
// that are promised to other guests do not count as free.
func poolShortages(rooms []capacity.Node, p guest.Placement) []plan.Step {
	var short []plan.Step
	for _, r := range p.Reservations {
		if r.PageSize == 0 || r.Memory == 0 {
			continue
		}
		need, free := uint64((r.Memory+r.PageSize-1)/r.PageSize), uint64(0)
		for _, room := range rooms {
			for _, pool := range room.Huge {
				if room.Node == r.Node && pool.Size == r.PageSize {
					free = pool.Free
				}
			}
		}
		if need > free {
			short = append(short,
				plan.Step{Kind: plan.GrowPool, Node: r.Node, PageSize: r.PageSize, Pages: need - free})
		}
	}
	return short
}

// givePoolsBack removes the pages that were added for a guest from the pools,
// and keeps a record of those that it cannot remove because they are in use.
// Pages of a guest that ran may have moved with it, so it takes them from
// nodes, in the order in which the guest last had memory there. A guest that
// never ran has no such nodes: its pages are where they were added, and other
// nodes' free pages belong to other guests.
func (h *Host) givePoolsBack(name string, lay topology.MemoryByNode, nodes topology.NodeSet) error {
	grown, err := h.Ledger.GrownFor(name)
	if err != nil || len(grown) == 0 {
		return err
	}
	var stuck []claim.Grown
	var errs []error
	for _, g := range grown {
		left, err := h.shrinkPools(g, poolsOf(g, lay, nodes))
		if err == nil && left > 0 {
			err = ErrPagesInUse
		}
		if left > 0 {
			errs = append(
				errs,
				fmt.Errorf(
					"%d huge pages of %v that were added for VM %s stay in the pools: %w; 'numavisor delete "+
						"%[3]s' tries again",
					left,
					g.Size,
					name,
					err,
				),
			)
			g.Pages = left
			stuck = append(stuck, g)
		}
	}
	if err := h.Ledger.ForgetGrown(name); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if len(stuck) > 0 {
		errs = append(errs, h.Ledger.PutGrown(name, stuck))
	}
	return errors.Join(errs...)
}

// shrinkPools removes pages from the pools of the nodes in turn, and returns
// how many remain to be removed.
func (h *Host) shrinkPools(g claim.Grown, nodes []topology.NodeID) (left uint64, err error) {
	left = g.Pages
	for _, node := range nodes {
		if left == 0 {
			break
		}
		gone, err := h.Kernel.ShrinkPool(node, g.Size, left)
		if err != nil {
			return left, err
		}
		left -= min(gone, left)
	}
	return left, nil
}

// poolsOf orders the nodes by the likelihood that added pages are there now:
// the nodes where they were added if most of the guest's pages are there, then
// the nodes where the guest had most memory, then those where they were added,
// then all others.
func poolsOf(g claim.Grown, lay topology.MemoryByNode, nodes topology.NodeSet) []topology.NodeID {
	likely := func(node topology.NodeID) topology.Bytes {
		switch {
		case node != g.Node:
			return lay[node]
		case lay[node] >= topology.Bytes(g.Pages)*g.Size/2:
			return math.MaxUint64
		}
		return lay[node] + 1
	}
	order := nodes.With(g.Node).IDs()
	slices.SortStableFunc(order, func(a, b topology.NodeID) int { return cmp.Compare(likely(b), likely(a)) })
	return order
}
