// Package observe reads a host's sources into one inventory. It declares the
// few functions that it needs of a source; the drivers satisfy them. What a
// source cannot read becomes a gap of the inventory, not a failure: a decision
// may then refuse to use the inventory, and names the gap.
package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Kernel are the functions of the host's kernel that observe needs.
type Kernel interface {
	Topology() (topology.Topology, error)
	Settings() (inventory.Kernel, []inventory.Gap)
	// Memory returns guest memory per node from an O(nodes) source if there is
	// one, else from numa_maps, and names the source.
	Memory(g inventory.Guest) (topology.MemoryByNode, string, error)
	Threads(pid int) (threads []inventory.Thread, source string, err error)
	// Throttled returns for how long the quota of CPU time of a VM's cgroups held
	// its vCPUs back since it started.
	Throttled(pid int) (time.Duration, error)
	// HintFaults returns what kernel balancing has recorded about the memory of a VM's process. An error
	// is normal: not all kernels record it.
	HintFaults(pid int) (inventory.HintFaults, error)
	// Ranges returns the mappings of a VM process that can hold guest RAM. It
	// reads numa_maps, for which the kernel walks every present page table
	// entry.
	Ranges(ctx context.Context, pid int) ([]inventory.MemoryRange, error)
	// Cgroup returns the group that holds a VM's threads, below the cgroup root.
	Cgroup(pid int) (string, error)
	// NodeLimits returns the groups that restrict the nodes of a process and
	// that neither Numavisor nor the hypervisor may widen, the topmost first.
	NodeLimits(pid int) ([]inventory.NodeLimit, error)
}

// Hypervisor lists its VMs, with Config filled and Seen empty, or filled for VMs without a process
// on this host. An error that has a method Gaps() []inventory.Gap means that all VMs are listed, and
// something else about them is unknown.
type Hypervisor interface {
	Name() guest.Hypervisor
	Guests(ctx context.Context) ([]inventory.Guest, error)
}

// ErrNotInstalled is the error of a hypervisor that is not installed on the
// host. It is a gap like others, but hides no guests.
var ErrNotInstalled = errors.New("not on this host")

// Sources are the sources for one host.
type Sources struct {
	Kernel Kernel
	// Pools returns the CPU pools of the hypervisor; nil: it has none.
	Pools func(ctx context.Context) ([]inventory.Pool, error)
	// ControlDomain returns the guest that manages the host; nil: the hypervisor has none.
	ControlDomain func(ctx context.Context) (*inventory.ControlDomain, error)
	Hypervisors   []Hypervisor // in order of precedence: a process in two lists is the first one's
	// Claims returns the reservations that could be read, with an error for the
	// others.
	Claims func() ([]inventory.Claim, error)
	// Complete adds what programs of this host have recorded about the guests; nil: nothing.
	Complete func(*inventory.Host)
	Now      func() time.Time
	HostName func() (string, error)
	// HostID returns the host's stable id, empty if it has none; nil: the same.
	HostID   func() (string, error)
	Measured *topology.Measured // operator's figures, which take precedence over the firmware's
	// Housekeeping CPUs by configuration, in addition to what the kernel sets aside.
	Housekeeping topology.CPUSet
}

// Host observes the host. It reads ranges only for the guests named in closely.
//
// The order matters if a guest starts meanwhile. Its claim is released once it
// runs: so claims are read first, or an observation might find neither. Its
// memory comes out of free memory: so free memory is read last, or the same
// memory might count as its own and as free, too. A guest that is found twice
// in this way counts twice, so that room is refused and never given away twice.
func Host(ctx context.Context, s Sources, closely ...string) (inventory.Host, error) {
	h := inventory.Host{Version: inventory.Version, Taken: s.Now().UTC(), Guests: []inventory.Guest{}}
	claims := s.claims(&h)
	var err error
	if h.Name, err = s.HostName(); err != nil {
		h.Gaps = append(h.Gaps, gap(inventory.OtherGap, inventory.HostRef(), "its name", err))
	}
	if s.HostID != nil {
		if h.ID, err = s.HostID(); err != nil {
			h.Gaps = append(h.Gaps, gap(inventory.OtherGap, inventory.HostRef(), "its stable id", err))
		}
	}
	if s.Pools != nil { // an observation without pools fails: they are read before all that takes long
		if h.Pools, err = s.Pools(ctx); err != nil {
			return h, fmt.Errorf("reading the host's CPU pools: %w", err)
		}
	}
	settings, gaps := s.Kernel.Settings()
	h.Kernel, h.Gaps = settings, append(h.Gaps, gaps...)
	for _, v := range s.Hypervisors {
		s.addGuests(ctx, v, &h, closely)
	}
	if s.ControlDomain != nil {
		if h.ControlDomain, err = s.ControlDomain(ctx); err != nil {
			h.Gaps = append(h.Gaps, inventory.Gap{Kind: inventory.SettingsUnread, Object: inventory.HostRef(),
				What: "the control domain", Why: err.Error()})
		}
	}
	slices.SortFunc(h.Guests, func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) })
	if err := ctx.Err(); err != nil {
		return h, fmt.Errorf("observing the host: %w", err)
	}
	h.Claims = claims
	if h.Topology, err = s.topology(); err != nil {
		return h, err
	}
	h.CheckIntents()
	if s.Complete != nil {
		s.Complete(&h)
	}
	return h, nil
}

// claims reads the reservations; unreadable ones are a gap.
func (s Sources) claims(h *inventory.Host) []inventory.Claim {
	if s.Claims == nil {
		return nil
	}
	claims, err := s.Claims()
	if err != nil {
		h.Gaps = append(h.Gaps, inventory.ClaimsGap(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return claims
}

func (s Sources) topology() (topology.Topology, error) {
	t, err := s.Kernel.Topology()
	if err != nil {
		return t, fmt.Errorf("reading the host's topology: %w", err)
	}
	if s.Measured != nil {
		if err := t.Measure(s.Measured); err != nil {
			return t, err
		}
	}
	return t, t.Housekeep(s.Housekeeping)
}

func (s Sources) addGuests(ctx context.Context, v Hypervisor, h *inventory.Host, closely []string) {
	guests, err := v.Guests(ctx)
	var partly interface{ Gaps() []inventory.Gap }
	switch {
	case errors.As(err, &partly):
		h.Gaps = append(h.Gaps, partly.Gaps()...)
	case errors.Is(err, ErrNotInstalled):
		absent := gap(inventory.HypervisorAbsent, inventory.HostRef(), "the hypervisor "+v.Name().String(), err)
		absent.Hypervisor = v.Name()
		h.Gaps = append(h.Gaps, absent)
	case err != nil:
		h.Gaps = append(h.Gaps, inventory.UnseenGap(v.Name(), err.Error()))
	}
	for _, g := range guests {
		if g.PID > 0 && slices.ContainsFunc(h.Guests, func(o inventory.Guest) bool { return o.PID == g.PID }) {
			continue
		}
		g.KeepIntentOf(h.Identity())
		if g.PID > 0 {
			seen, gaps, gone := s.see(ctx, g, slices.Contains(closely, g.Name))
			if gone {
				h.Gaps = append(
					h.Gaps,
					inventory.Gap{Kind: inventory.GuestGone, Object: inventory.GuestRef(g.Name), What: "the guest",
						Why: fmt.Sprintf("its process %d ended during the observation", g.PID)},
				)
				continue
			}
			g.Seen = seen
			h.Gaps = append(h.Gaps, gaps...)
		}
		h.Guests = append(h.Guests, g)
	}
}

// see asks the kernel about one running guest. gone means that its process
// ended meanwhile.
func (s Sources) see(
	ctx context.Context, g inventory.Guest, closely bool,
) (seen inventory.Seen, gaps []inventory.Gap, gone bool) {
	note := func(kind inventory.GapKind, what string, err error) {
		gaps = append(gaps, gap(kind, inventory.GuestRef(g.Name), what, err))
	}
	var err error
	if seen.Threads, seen.ThreadSource, err = s.Kernel.Threads(g.PID); err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return seen, nil, true
		}
		note(inventory.ThreadsUnread, "its threads", err)
	}
	if seen.CgroupPath, err = s.Kernel.Cgroup(g.PID); err != nil {
		note(inventory.CgroupUnread, "its cgroup", err)
	}
	if seen.NodeLimits, err = s.Kernel.NodeLimits(g.PID); err != nil {
		note(inventory.CgroupUnread, "the cgroups above it that restrict its nodes", err)
	}
	if seen.Throttled, err = s.Kernel.Throttled(g.PID); err != nil {
		note(inventory.CPUUnmeasured, "the quota of its vCPUs", err)
	}
	g.Seen = seen
	if seen.MemoryByNode, seen.MemorySource, err = s.Kernel.Memory(g); err != nil {
		note(inventory.MemoryUnread, "its memory by node", err)
	}
	if closely {
		ranges, err := s.Kernel.Ranges(ctx, g.PID)
		if err != nil {
			note(inventory.MappingsUnread, "its mappings", err)
		}
		seen.Ranges = AssignCells(ranges, g.Config)
	}
	return seen, gaps, false
}

func gap(kind inventory.GapKind, object inventory.Ref, what string, err error) inventory.Gap {
	return inventory.Gap{Kind: kind, Object: object, What: what, Why: err.Error()}
}
