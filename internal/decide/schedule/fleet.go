package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Host is one host of a fleet.
type Host struct {
	Name string
	Rack string // hosts that fail together; empty: the host alone
	// Preference is added to the cost of a placement on the host, negative for
	// hosts to be filled first. Costs are usually from 0 to 10.
	Preference float64
	// Cordoned and unreachable hosts get no new VMs. The VMs on them count.
	Cordoned, Unreachable bool
	Inventory             *inventory.Host
}

// Weights are the weights of the terms of a placement's cost. The zero value means
// DefaultWeights.
type Weights struct {
	Scarcity float64 `json:"scarcity"` // of the fits taken away, each weighted by how scarce its shape is
	Load     float64 `json:"load"`     // of the CPU use of the VM's node that is used most, 0 to 1 and more
	Fill     float64 `json:"fill"`     // of what stays free on the host, 0 to 1
	Spread   float64 `json:"spread"`   // of the share of the group's VMs that are in the host's rack, 0 to 1
}

// DefaultWeights fill hosts so that room for all shapes remains. Where hosts are nearly
// equal in that, fuller hosts come first, and then nodes with a lower CPU use.
var DefaultWeights = Weights{Scarcity: 1, Fill: 0.02, Load: 0.001, Spread: 1}

// Fleet is the state of all hosts. It is not safe for concurrent use.
type Fleet struct {
	policy        policy.Policy
	weights       Weights
	hosts         []*host
	byName        map[string]int
	groups        map[string][]member
	mix           mix
	likely        []likely
	left          []float64 // VMs of each likely shape that still fit into the fleet
	classes       map[shape]*class
	clock         uint64                            // counts decisions
	shapesChanged int                               // counts changes of the likely shapes
	lost          []uint16                          // of price: fits of each likely shape that the VM takes
	counted       []uint16                          // of taken
	rest          float64                           // of price: the cost without scarcity
	roomLost      []float64                         // of cheapest: fits of each likely shape, by room
	changes       []int                             // hosts that changed, in order
	vacant        []int                             // positions in hosts that no host has
	closed        map[reason]int                    // hosts that get no new VMs, by reason
	open          map[string]int                    // the other hosts, by the types of machines that they make
	scratch       []float64                         // of several
	counts        []float64                         // of taken
	look          func(host string) *inventory.Host // see LookUp; nil: the fleet has all inventories
	choices       []choice                          // of cheapest
	largest       size                              // the most that any host has
}

// host is a Host with its summary. Its Inventory includes the claims; with LookUp it may be nil.
type host struct {
	Host
	known  bool     // else no host has this position
	makes  []string // types of machines
	size   size
	cores  []int             // of each node
	claims map[string]*claim // by VM
	rooms  []room            // of nodes with CPUs and memory
	others []room            // of the other nodes
	fits   []fit             // of each likely shape
}

// fit is how many VMs of a shape fit on a host.
type fit struct {
	vms   float64
	cells int       // of each VM: as few as possible; 0: none fits
	on    []float64 // cells that fit on each room
}

// member is a VM of a group.
type member struct {
	vm    string
	host  int
	nodes topology.NodeSet
}

// New returns a fleet of these hosts, none or more. Their names must differ. The inventories
// are not changed. The shapes of the VMs on the hosts are the first guess of
// what will be asked for.
func New(hosts []Host, p policy.Policy, w Weights) (*Fleet, error) {
	if w == (Weights{}) {
		w = DefaultWeights
	}
	f := &Fleet{policy: p.WithDefaults(), weights: w, byName: map[string]int{}, groups: map[string][]member{},
		classes: map[shape]*class{}, closed: map[reason]int{}, open: map[string]int{}}
	for _, h := range hosts {
		if _, twice := f.byName[h.Name]; twice {
			return nil, fmt.Errorf("host %s: is in the fleet twice; names of hosts must differ", h.Name)
		}
		f.byName[h.Name] = len(f.hosts)
		f.hosts = append(f.hosts, &host{})
		f.set(len(f.hosts)-1, h)
	}
	f.recount()
	return f, nil
}

// guessShapes stands in for requests that a fleet without VMs has not seen: a
// quarter of a node of the first host, a whole node, and two nodes.
func (f *Fleet) guessShapes() {
	for _, h := range f.hosts {
		if len(h.rooms) == 0 || len(h.makes) == 0 {
			continue
		}
		r := &h.rooms[0]
		for _, eighths := range []int{1, 2, 8, 16} {
			s := shape{vcpus: max(1, r.cpus*eighths/8), memory: r.left * topology.Bytes(eighths) / 8,
				machine: h.makes[0]}
			if eighths > 8 {
				s.cells = eighths / 8
			}
			f.mix.add(s)
		}
		return
	}
}

// recount chooses the likely shapes and counts how many of them fit. The next
// recount is when the mix has grown by half, and at most 1024 requests later.
func (f *Fleet) recount() {
	if f.mix.sum == 0 {
		f.guessShapes()
	}
	next := f.mix.likely(f.likely)
	same := slices.EqualFunc(f.likely, next, func(a, b likely) bool { return a.shape == b.shape })
	f.likely = next
	f.mix.next = f.mix.sum + min(max(16, f.mix.sum/2), 1024)
	if same {
		return
	}
	f.shapesChanged++
	f.lost, f.counted = make([]uint16, len(f.likely)), make([]uint16, len(f.likely))
	f.left = make([]float64, len(f.likely))
	for _, h := range f.hosts {
		h.fits = nil
		f.count(h)
	}
}

// count counts how many VMs of the likely shapes fit on a host.
func (f *Fleet) count(h *host) {
	if len(h.fits) != len(f.likely) || len(h.fits) > 0 && len(h.fits[0].on) != len(h.rooms) {
		f.makeFits(h)
	}
	for s := range f.likely {
		fit := &h.fits[s]
		f.left[s] -= fit.vms
		f.fit(h, &f.likely[s], fit)
		f.left[s] += fit.vms
	}
}

// makeFits makes space for the counts of a host.
func (f *Fleet) makeFits(h *host) {
	for s := range h.fits {
		f.left[s] -= h.fits[s].vms
	}
	h.fits = make([]fit, len(f.likely))
	space := make([]float64, len(f.likely)*len(h.rooms))
	for s := range h.fits {
		h.fits[s].on = space[s*len(h.rooms) : (s+1)*len(h.rooms)]
	}
}

// fit counts how many VMs of a shape fit on a host, divided into as few cells as possible.
func (f *Fleet) fit(h *host, l *likely, out *fit) {
	out.vms, out.cells = 0, 0
	if !slices.Contains(h.makes, l.machine) {
		return
	}
	least, most := l.divisions(len(h.rooms))
	for k := least; k <= most; k++ {
		p := l.part(k)
		for i := range h.rooms {
			out.on[i] = h.rooms[i].fits(p)
		}
		if out.vms = f.several(out.on, k); out.vms > 0 {
			out.cells = k
			return
		}
	}
}

// several is the function of the same name. It leaves counts as they are.
func (f *Fleet) several(counts []float64, k int) float64 {
	f.scratch = append(f.scratch[:0], counts...)
	return several(f.scratch, k)
}

func find(guests []inventory.Guest, name string) (int, bool) {
	return slices.BinarySearchFunc(guests, name, func(g inventory.Guest, name string) int {
		return strings.Compare(g.Name, name)
	})
}
