package inventory

import "strings"

// unseenGuests begins What of a gap that can hide guests.
const unseenGuests = "VMs of "

// GuestsUnseen is the gap that a hypervisor leaves which is on the host and
// could not be asked for its guests, or not for all of them.
func GuestsUnseen(hypervisor, why string) Gap {
	return Gap{Object: "host", What: unseenGuests + hypervisor, Why: why}
}

// HidesGuests reports whether guests may be on the host that the inventory
// does not show, because of this gap.
func (g Gap) HidesGuests() bool {
	return g.Object == "host" && strings.HasPrefix(g.What, unseenGuests)
}

// HiddenBy returns the gaps that can hide guests. Where there is one, neither
// is a guest known not to be there, nor what room is left.
func (h *Host) HiddenBy() []Gap {
	var all []Gap
	for _, g := range h.Gaps {
		if g.HidesGuests() {
			all = append(all, g)
		}
	}
	return all
}
