package policy

import (
	"io"

	"github.com/numavisor/numavisor/internal/strictyaml"
)

var format = strictyaml.Format{Kind: "policy", MaxBytes: 1 << 20}

// Parse reads a policy in YAML or JSON, strictly: a policy applies as a whole
// or not at all. Its faults are one *strictyaml.Error.
func Parse(r io.Reader) (Policy, error) {
	var p Policy
	// p.Validate as a value would check the policy as it is before it is decoded.
	validate := func() error { return p.Validate() } //nolint:gocritic // see above
	if _, err := strictyaml.Decode(r, format, &p, validate); err != nil {
		return Policy{}, err
	}
	return p, nil
}
