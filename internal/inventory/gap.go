package inventory

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
)

// Gap is a fact that a source could not observe. Code decides by Kind, Object
// and Hypervisor; What and Why are for people.
type Gap struct {
	Kind   GapKind `json:"kind"`
	Object Ref     `json:"object"`
	// Hypervisor is the one that could not be read; empty: the gap is not about a hypervisor.
	Hypervisor guest.Hypervisor `json:"hypervisor,omitempty"`
	What       string           `json:"what"` // what is missing
	Why        string           `json:"why"`  // and why
}

// GapKind says what is missing.
type GapKind string

// Kinds of gaps. The object is a guest unless the comment names another.
const (
	GuestsUnseen     GapKind = "guests-unseen"     // host: some or all guests of a hypervisor
	ClaimsUnread     GapKind = "claims-unread"     // host: reservations in flight; hides resources, but no guests
	HypervisorAbsent GapKind = "hypervisor-absent" // host: a hypervisor that is not installed; hides no guests
	HostUnread       GapKind = "host-unread"       // host: the whole inventory; the daemon shows an earlier one
	GuestGone        GapKind = "guest-gone"        // the guest ended while it was read
	ConfigUnread     GapKind = "config-unread"     // configuration, such as QEMU's arguments
	IntentUnused     GapKind = "intent-unused"     // recorded intent, which is contradicted or cannot be read
	ThreadsUnread    GapKind = "threads-unread"    // threads, or which of them run vCPUs
	CgroupUnread     GapKind = "cgroup-unread"     // cgroup
	MemoryUnread     GapKind = "memory-unread"     // guest, node: memory by node, free memory, huge page pools
	MappingsUnread   GapKind = "mappings-unread"   // mappings of its process (numa_maps)
	SettingsUnread   GapKind = "settings-unread"   // host: settings of the kernel, and whether numad runs
	CPUUnmeasured    GapKind = "cpu-unmeasured"    // guest, host: CPU use, waiting for CPUs, CPU quota
	AccessUnmeasured GapKind = "access-unmeasured" // host: a source of memory accesses
	LoadsUnmeasured  GapKind = "loads-unmeasured"  // host: all loads; no daemon measures
	PressureUnread   GapKind = "pressure-unread"   // host: pressure (PSI)
	MovesUnread      GapKind = "moves-unread"      // host: pages that the kernel moved
	JournalUnread    GapKind = "journal-unread"    // host: lines of the journal
	NotReported      GapKind = "not-reported"      // host: what its hypervisor never reports; no alarm
	OtherGap         GapKind = "other"             // what no decision depends on
)

var gapKinds = []GapKind{
	GuestsUnseen, HypervisorAbsent, HostUnread, GuestGone, ConfigUnread, IntentUnused, ThreadsUnread, CgroupUnread,
	MemoryUnread,
	MappingsUnread, SettingsUnread, CPUUnmeasured, AccessUnmeasured, LoadsUnmeasured, PressureUnread, MovesUnread,
	JournalUnread, ClaimsUnread, NotReported, OtherGap,
}

// UnmarshalText reads a known kind only: an unknown one could hide guests.
func (k *GapKind) UnmarshalText(text []byte) error {
	*k = GapKind(text)
	if !slices.Contains(gapKinds, *k) {
		return fmt.Errorf(
			"gap of kind %q: not known to this version of numavisor; read it with the version that wrote it", text)
	}
	return nil
}

// UnmarshalJSON reads a gap. One without a kind is from before gaps had kinds;
// its kind is derived from its text, here and nowhere else.
func (g *Gap) UnmarshalJSON(data []byte) error {
	type plain Gap
	var read struct {
		Object *Ref `json:"object"`
		plain
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	if read.Object == nil {
		return fmt.Errorf("gap %q: has no object", read.What)
	}
	*g = Gap(read.plain)
	g.Object = *read.Object
	if g.Kind == "" {
		g.deriveKind()
	}
	return nil
}

// deriveKind gives a gap of an older document the kind on which decisions
// depend.
func (g *Gap) deriveKind() {
	g.Kind = OtherGap
	if !g.Object.IsHost() {
		return
	}
	if name, ok := strings.CutPrefix(g.What, unseenText); ok {
		g.Kind, g.Hypervisor = GuestsUnseen, guest.Hypervisor(name)
		if name == guest.PlainQEMU.String() {
			g.Hypervisor = guest.PlainQEMU
		}
	} else if strings.HasPrefix(g.What, accessText) {
		g.Kind = AccessUnmeasured
	} else if g.What == loadsText {
		g.Kind = LoadsUnmeasured
	}
}

// The texts of gaps of these kinds. Older documents contain only this text.
const (
	unseenText = "VMs of "
	accessText = "accesses by "
	loadsText  = "loads of its VMs and nodes, and how fast memory is copied"
)

// UnseenGap is the gap for a hypervisor that is on the host and could not list
// its guests, or not all of them.
func UnseenGap(h guest.Hypervisor, why string) Gap {
	return Gap{Kind: GuestsUnseen, Object: HostRef(), Hypervisor: h, What: unseenText + h.String(), Why: why}
}

// ClaimsGap is the gap for reservations that cannot be read.
func ClaimsGap(why string) Gap {
	return Gap{Kind: ClaimsUnread, Object: HostRef(), What: "reservations in flight", Why: why}
}

// AccessText is what a gap of kind AccessUnmeasured says is missing.
func AccessText(s AccessSource) string { return accessText + string(s) }

// LoadsGap is the gap of a host without measured loads.
func LoadsGap(why string) Gap {
	return Gap{Kind: LoadsUnmeasured, Object: HostRef(), What: loadsText, Why: why}
}

// HidesGuests reports whether the gap means that the host may have guests that
// the inventory does not show.
func (g Gap) HidesGuests() bool { return g.Kind == GuestsUnseen }

// HidesGuestsOf reports whether guests of one hypervisor may be hidden.
func (g Gap) HidesGuestsOf(h guest.Hypervisor) bool { return g.HidesGuests() && g.Hypervisor == h }

// HiddenBy returns the gaps that can hide guests. With such a gap, neither the
// absence of a guest nor the free resources are known.
func (h *Host) HiddenBy() []Gap {
	var all []Gap
	for _, g := range h.Gaps {
		if g.HidesGuests() {
			all = append(all, g)
		}
	}
	return all
}

// ComesOrGoes reports whether the host was observed while a guest was starting, rebooting or ending.
func (h *Host) ComesOrGoes(guest string) bool {
	return slices.ContainsFunc(h.Gaps, func(g Gap) bool { return g.Kind == GuestGone && g.Object == GuestRef(guest) })
}

// RoomHiddenBy returns the gaps that make the free resources unknown: those that
// can hide guests, and reservations that cannot be read.
func (h *Host) RoomHiddenBy() []Gap {
	var all []Gap
	for _, g := range h.Gaps {
		if g.HidesGuests() || g.Kind == ClaimsUnread {
			all = append(all, g)
		}
	}
	return all
}
