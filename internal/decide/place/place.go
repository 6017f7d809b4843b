package place

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// Request asks for a placement of one guest on one host.
type Request struct {
	Host   *inventory.Host
	Spec   guest.Spec // zero fields count as their documented defaults
	Policy policy.Policy
	// Ignore names a guest whose own reservation does not count: the running guest
	// that is being placed again.
	Ignore string
	// WithoutAdvice asks for a refusal without the changes that would make the guest fit:
	// each of them takes about as long as a placement.
	WithoutAdvice bool
}

// Place finds the best placement of the guest, and explains it. If the guest does
// not fit, the error is a *NoFitError; other errors mean that the request is invalid.
// The same request gives the same result.
func Place(r Request) (guest.Placement, Why, error) {
	if r.Spec.IsHandoff() {
		return placeMirror(r)
	}
	p, err := newProblem(r)
	if err != nil {
		return guest.Placement{}, Why{}, err
	}
	if err := p.checkHelpers(); err != nil {
		return guest.Placement{}, Why{}, err
	}
	sol, refused := p.solve()
	if sol == nil {
		return guest.Placement{}, Why{}, p.noFit(r, refused)
	}
	placement := p.assemble(sol)
	return placement, p.why(sol, &placement), nil
}
