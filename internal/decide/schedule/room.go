package schedule

import (
	"cmp"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// room is the summary of one node's free resources.
type room struct {
	node   topology.NodeID
	vcpus  float64 // vCPUs that its shared CPUs may still carry under the overcommit limit
	cpus   int     // CPUs that one VM may use
	cores  int     // cores with such a CPU
	alone  int     // CPUs that can become exclusive
	demand float64 // CPUs that VMs and the host want: measured, or else promised vCPUs
	left   topology.Bytes
	pools  []pool
	policy *policy.Policy // of the fleet
}

// pool is the memory that can be had in pages of one size.
type pool struct{ size, left topology.Bytes }

func (r *room) equal(o *room) bool {
	return r.vcpus == o.vcpus && r.cpus == o.cpus && r.cores == o.cores && r.alone == o.alone &&
		r.demand == o.demand && r.left == o.left && slices.Equal(r.pools, o.pools)
}

// rooms summarizes the nodes of a host: those with CPUs and memory, and the others, which
// serve only VMs with uneven cells or whose spec names them. cores are the cores of its nodes.
func rooms(h *inventory.Host, cores []int, p *policy.Policy) (whole, others []room) {
	for i, n := range capacity.Available(h, *p, "") {
		usable := n.CPUs.Minus(n.Housekeeping).Minus(n.Exclusive)
		r := room{node: n.Node,
			vcpus: p.Overcommit*float64(n.Shared.Len()) - n.Load, cpus: usable.Len(),
			cores:  min(cores[i], usable.Len()),
			alone:  max(0, min(usable.Minus(n.Pinned).Len(), n.Alone(p.Overcommit))),
			demand: n.Demand, left: n.Left, policy: p,
		}
		for _, huge := range n.Huge {
			left := topology.Bytes(huge.Free) * huge.Size
			if p.MayGrow(huge.Size) {
				left += n.Left
			}
			r.pools = append(r.pools, pool{huge.Size, left})
		}
		if n.CPUs.Minus(n.Housekeeping).IsEmpty() || n.Memory == 0 {
			others = append(others, r)
		} else {
			whole = append(whole, r)
		}
	}
	return whole, others
}

// coresOf returns the number of cores of each node.
func coresOf(t *topology.Topology) []int {
	counts := make([]int, len(t.Nodes))
	for c := range t.CPUs {
		first, _ := t.CPUs[c].Siblings.First()
		if first != t.CPUs[c].ID {
			continue
		}
		for i := range t.Nodes {
			if t.Nodes[i].ID == t.CPUs[c].Node {
				counts[i]++
			}
		}
	}
	return counts
}

// fits returns how many parts the node has room for.
func (r *room) fits(p *part) float64 {
	if p.vcpus > r.cpus {
		return 0
	}
	by := r.vcpus
	if p.exclusive {
		by = float64(r.alone)
	}
	const rounding = 1e-6 // loads are sums of shares of vCPUs, and reciprocals are rounded
	n := by*p.perVCPUs + rounding
	if p.memory > 0 {
		n = min(n, float64(r.memory(p.page))*p.perByte+rounding)
	}
	return float64(int64(max(0, n)))
}

// memory returns the free memory in pages of a size.
func (r *room) memory(page topology.Bytes) topology.Bytes {
	if page == 0 {
		return r.left
	}
	for _, p := range r.pools {
		if p.size == page {
			return p.left
		}
	}
	if r.policy.MayGrow(page) {
		return r.left // the pool is made when the VM is created
	}
	return 0
}

// without returns the room that remains with a part on the node.
func (r *room) without(p *part) room {
	left := *r
	left.take(p)
	return left
}

func (r *room) take(p *part) {
	if p.exclusive {
		r.alone -= p.vcpus
		r.cpus -= p.vcpus
	}
	r.vcpus -= float64(p.vcpus)
	r.demand += float64(p.vcpus)
	if p.page == 0 {
		r.left -= min(p.memory, r.left)
		return
	}
	r.pools = slices.Clone(r.pools)
	for i := range r.pools {
		if r.pools[i].size == p.page {
			r.pools[i].left -= min(p.memory, r.pools[i].left)
		}
	}
}

// use returns the share of the node's CPUs that is in demand once it has the part.
func (r *room) use(p *part) float64 { return (r.demand + float64(p.vcpus)) / float64(max(1, r.cpus)) }

// several returns how many VMs of k cells on k different nodes fit, given how many
// cells fit on each node: the greatest t for which the sum of min(count, t) is at
// least k t. That holds if, for each j < k, the nodes other than the j fullest hold
// the k-j remaining cells of each VM. It sorts counts.
func several(counts []float64, k int) float64 {
	if len(counts) < k {
		return 0
	}
	rest := 0.0
	for _, c := range counts {
		rest += c
	}
	if k > 1 {
		slices.SortFunc(counts, func(a, b float64) int { return cmp.Compare(b, a) })
	}
	most := math.Inf(1)
	for j := range k {
		most = min(most, math.Floor(rest/float64(k-j)))
		rest -= counts[j]
	}
	return most
}
