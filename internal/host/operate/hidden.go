package operate

import (
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
)

// HiddenError means that the inventory lacks VMs or reservations, and that the
// action needs them. Brief and Causes separate what failed from the reasons of
// the gaps, which are often long.
type HiddenError struct {
	What string // what failed for lack of them: "cannot see VMs of qemu, so the free resources are unknown"
	Kind error  // ErrUnseen, or nil
	Gaps []inventory.Gap
}

// Error says in one line what failed and why.
func (e *HiddenError) Error() string { return e.What + ": " + strings.Join(e.Causes(), "; ") }

// Brief says what failed and what to do.
func (e *HiddenError) Brief() string { return e.What + "; correct the cause and try again" }

// Causes returns the reason of each gap. With several gaps, each reason names
// what its gap hides.
func (e *HiddenError) Causes() []string {
	if len(e.Gaps) == 1 {
		return []string{e.Gaps[0].Why}
	}
	var all []string
	for _, g := range e.Gaps {
		all = append(all, g.What+": "+g.Why)
	}
	return all
}

// Unwrap gives the kind to errors.Is.
func (e *HiddenError) Unwrap() error { return e.Kind }

// whatOf lists what the gaps hide.
func whatOf(gaps []inventory.Gap) string {
	var all []string
	for _, g := range gaps {
		all = append(all, g.What)
	}
	return strings.Join(all, " and ")
}
