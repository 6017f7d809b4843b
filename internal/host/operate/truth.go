package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Truth is a guest's real placement, with the source of each figure. Shares are
// from 0 to 1; nil if unknown. In JSON all figures are there, whatever the hypervisor reports: null if unknown.
type Truth struct {
	Guest   string `json:"guest"`
	State   string `json:"state"`
	Managed bool   `json:"managed"`
	// PlacedFor is the other host that the recorded placement is for; that
	// placement does not count here.
	PlacedFor *guest.HostIdentity `json:"placed_for,omitempty"`
	VCPUs     int                 `json:"vcpus"`
	Memory    topology.Bytes      `json:"memory_bytes"`
	Nodes     topology.NodeSet    `json:"nodes"` // intended

	MemoryByNode topology.MemoryByNode `json:"memory_by_node"`
	MemorySource string                `json:"memory_source"`
	// LocalShare is the share of its memory that is local to the vCPUs using
	// it. LocalSource says by which vCPUs memory counts as local.
	LocalShare  *float64          `json:"local_share"`
	LocalSource drift.LocalSource `json:"local_source"`
	// OnIntended are the shares of memory and of vCPUs that are where the
	// placement wants them.
	MemoryOnIntended *float64 `json:"memory_on_intended"`
	VCPUsOnIntended  *float64 `json:"vcpus_on_intended"`

	VCPUsByNode map[topology.NodeID]int `json:"vcpus_by_node"` // by the CPU that each last ran on
	// WaitShare is the share of the time since start in which its vCPUs wanted
	// to run and waited for a CPU that others used. It excludes the time in which
	// its own quota throttled them; ThrottledShare is the share of that time. Of a guest
	// that hands CPUs over, WaitShare is unknown: its vCPUs without a CPU wait by design.
	WaitShare      *float64 `json:"wait_share"`
	ThrottledShare *float64 `json:"throttled_share"`
	ThreadSource   string   `json:"thread_source"`
	// HandedOver is what a guest that hands CPUs over has of them; nil: it hands none over, or
	// does not run.
	HandedOver *inventory.HandedOver `json:"hand_over,omitempty"`
	// Scaled is which vCPUs a running guest uses whose number of vCPUs follows its demand; nil: it is none, or no
	// daemon has recorded that.
	Scaled *inventory.Scaled `json:"scaled,omitempty"`

	Differences []drift.Difference `json:"drift"`
	// InProgress says that the guest is being bound or moved: differences are expected.
	InProgress bool `json:"in_progress,omitempty"`
}

// Truths returns the truth of every guest of an inventory.
func Truths(h *inventory.Host) []Truth {
	all := make([]Truth, 0, len(h.Guests))
	for _, g := range h.Guests {
		t := TruthOf(g, &h.Topology)
		_, t.InProgress = h.Claim(g.Name)
		all = append(all, t)
	}
	return all
}

// TruthOf returns the truth of one guest from its observation.
func TruthOf(g inventory.Guest, t *topology.Topology) Truth {
	r := Truth{
		Guest:        g.Name,
		State:        g.State,
		Managed:      g.Placement != nil,
		PlacedFor:    g.PlacedFor,
		VCPUs:        g.Config.VCPUs,
		Memory:       g.Config.Memory,
		MemoryByNode: g.Seen.MemoryByNode,
		MemorySource: g.Seen.MemorySource,
		ThreadSource: g.Seen.ThreadSource,
	}
	if g.Placement != nil {
		r.Nodes = g.Placement.Nodes
	}
	if len(g.Seen.Threads) == 0 {
		return r
	}
	if r.LocalShare = drift.LocalShare(g, t); r.LocalShare != nil {
		r.LocalSource = drift.LocalBy(&g, t)
	}
	r.MemoryOnIntended, r.VCPUsOnIntended = drift.OnIntended(g)
	r.Differences = drift.Of(g, t)
	r.VCPUsByNode = vcpusByNode(g, t)
	r.WaitShare, r.ThrottledShare = waitShares(g)
	r.Scaled = g.Seen.Scaled
	if g.Placement != nil && g.Placement.Handoff != nil {
		r.WaitShare, r.HandedOver = nil, handedOver(g)
	}
	return r
}

// handedOver returns what is recorded of a running guest that hands CPUs over; without a record,
// its minimum and weight.
func handedOver(g inventory.Guest) *inventory.HandedOver {
	if g.Seen.HandedOver != nil {
		return g.Seen.HandedOver
	}
	return &inventory.HandedOver{Min: g.Placement.Handoff.Min, Weight: g.Placement.Handoff.Weight}
}

// vcpusByNode counts vCPUs by the node that they last ran on.
func vcpusByNode(g inventory.Guest, t *topology.Topology) map[topology.NodeID]int {
	on := map[topology.NodeID]int{}
	for _, thread := range g.Seen.Threads {
		if thread.VCPU == nil {
			continue
		}
		if cpu, ok := t.CPU(thread.LastCPU); ok {
			on[cpu.Node]++
		}
	}
	return on
}

// waitShares returns the shares of their runnable time in which vCPUs waited
// for a CPU, and in which their own quota held them back; nil if no times were
// observed. The wait share is that of GuestLoad: Wait / (CPU + Wait).
func waitShares(g inventory.Guest) (wait, throttled *float64) {
	if g.Can.NoHelpers { // its vCPUs are no threads of this host's kernel, which alone counts waiting
		return nil, nil
	}
	var ran, waited time.Duration
	for _, thread := range g.Seen.Threads {
		if thread.VCPU != nil {
			ran += thread.RunTime
			waited += thread.WaitTime
		}
	}
	if ran+waited <= 0 {
		return nil, nil
	}
	held := min(g.Seen.Throttled, waited)
	share := func(part, of time.Duration) *float64 {
		s := 0.0
		if of > 0 {
			s = float64(part) / float64(of)
		}
		return &s
	}
	return share(waited-held, ran+waited-held), share(held, ran+waited)
}

// Verdict says in one sentence whether the guest is as intended.
func (t *Truth) Verdict() string {
	if len(t.Differences) > 0 {
		return fmt.Sprintf("not as intended: %s", t.Differences[0])
	}
	text := "as intended"
	if t.VCPUsOnIntended != nil {
		text += fmt.Sprintf(": %.0f %% of vCPUs on the intended CPUs", 100**t.VCPUsOnIntended)
	}
	if t.MemoryOnIntended != nil {
		text += fmt.Sprintf(", %.1f %% of memory on the intended nodes", 100**t.MemoryOnIntended)
	}
	return text
}

// Verify observes one guest, mapping by mapping, and returns its truth. If its
// threads or its memory could not be observed, the absence of differences would
// mean nothing, so that is an error. Verify waits for a guest that reboots.
func (h *Host) Verify(ctx context.Context, name string) (Truth, error) {
	inv, err := h.observeFor(ctx, name, name)
	if err != nil {
		return Truth{}, fmt.Errorf("verifying: %w", err)
	}
	return Verified(&inv, name)
}

// Verified is the truth about one guest of an inventory that observed it
// closely.
func Verified(inv *inventory.Host, name string) (Truth, error) {
	return verified(inv, name, (*inventory.Guest).ReadClosely)
}

// VerifiedByNode is the truth about one guest by figures for its nodes. The inventory need not have its mappings, which
// show policies and cells.
func VerifiedByNode(inv *inventory.Host, name string) (Truth, error) {
	return verified(inv, name, func(g *inventory.Guest) bool { return len(g.Seen.Threads) > 0 })
}

func verified(inv *inventory.Host, name string, read func(*inventory.Guest) bool) (Truth, error) {
	var err error
	g, found := inv.Guest(name)
	switch {
	case !found:
		err = Missing(*inv, name)
	case g.State != "running" && g.State != "paused":
		err = fmt.Errorf("VM %s no longer runs: it is %s", name, g.State)
	case !read(g):
		err = Unseen(*inv, name)
	default:
		return TruthOf(*g, &inv.Topology), nil
	}
	return Truth{}, fmt.Errorf("verifying: %w", err)
}

// Unseen lists what could not be observed of a guest, and why.
func Unseen(inv inventory.Host, name string) error {
	err := fmt.Errorf(
		"VM %s runs, but its threads or its memory could not be observed; try again with 'numavisor show %[1]s'",
		name)
	for _, gap := range inv.Gaps {
		if gap.Object == inventory.GuestRef(name) {
			err = fmt.Errorf("%w; %s: %s", err, gap.What, gap.Why)
		}
	}
	return err
}

// View is one guest, observed closely.
type View struct {
	Truth     Truth              `json:"truth"`
	Spec      *guest.Spec        `json:"spec,omitempty"`
	Placement *guest.Placement   `json:"placement,omitempty"`
	Config    inventory.Config   `json:"config"`
	Cells     []CellView         `json:"cells"`
	Threads   []inventory.Thread `json:"threads"`
	Gaps      []inventory.Gap    `json:"gaps,omitempty"`
}

// CellView is one mapping of guest RAM with its cell, or a cell as the hypervisor has it, without a mapping.
type CellView struct {
	Name     string                `json:"cell"`
	VCPUs    guest.VCPUSet         `json:"vcpus,omitzero"`
	Memory   topology.Bytes        `json:"memory_bytes"`
	Intended topology.NodeSet      `json:"intended_nodes,omitzero"`
	ByNode   topology.MemoryByNode `json:"by_node"`
	Policy   string                `json:"policy"`
	Backing  string                `json:"backing"`
	PageSize topology.Bytes        `json:"page_size_bytes"`
	Address  uint64                `json:"address"`
}

// Show observes one guest closely.
func (h *Host) Show(ctx context.Context, name string) (View, inventory.Host, error) {
	inv, g, err := h.find(ctx, name)
	if err != nil {
		return View{}, inv, err
	}
	v := View{
		Truth:     TruthOf(g, &inv.Topology),
		Spec:      g.Spec,
		Placement: g.Placement,
		Config:    g.Config,
		Cells:     []CellView{},
		Threads:   append([]inventory.Thread{}, g.Seen.Threads...),
	}
	for _, r := range g.Seen.Ranges {
		if r.Cell != nil {
			v.Cells = append(v.Cells, cellView(g, r))
		}
	}
	if len(v.Cells) == 0 && g.Can.NoHelpers { // its memory is no mapping of a process
		v.Cells = append(v.Cells, configuredCells(&g)...)
	}
	slices.SortStableFunc(v.Cells, func(a, b CellView) int { return cmp.Compare(a.Name, b.Name) })
	for _, gap := range inv.Gaps {
		if gap.Object == inventory.GuestRef(name) {
			v.Gaps = append(v.Gaps, gap)
		}
	}
	return v, inv, nil
}

// configuredCells are the cells of a guest as its hypervisor has them.
func configuredCells(g *inventory.Guest) (cells []CellView) {
	for _, have := range g.Config.Cells {
		c := CellView{Name: fmt.Sprint(have.ID), VCPUs: have.VCPUs, Memory: have.Memory}
		if g.Placement != nil {
			for _, cell := range g.Placement.Cells {
				if cell.ID == have.ID {
					c.Intended = cell.Nodes
				}
			}
		}
		cells = append(cells, c)
	}
	return cells
}

func cellView(g inventory.Guest, r inventory.MemoryRange) CellView {
	c := CellView{
		Name:     fmt.Sprint(*r.Cell),
		Memory:   r.Size,
		ByNode:   r.ByNode,
		Policy:   r.Policy,
		Backing:  r.Backing,
		PageSize: r.PageSize,
		Address:  r.Address,
	}
	for _, have := range g.Config.Cells {
		if have.ID == *r.Cell {
			c.VCPUs = have.VCPUs
		}
	}
	if len(g.Config.Cells) == 0 && g.Config.VCPUs > 0 {
		c.VCPUs = topology.Range(guest.VCPUID(0), guest.VCPUID(g.Config.VCPUs-1))
	}
	if g.Placement != nil {
		for _, cell := range g.Placement.Cells {
			if cell.ID == *r.Cell {
				c.Intended = cell.Nodes
			}
		}
	}
	return c
}
