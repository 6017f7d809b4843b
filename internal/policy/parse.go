package policy

import (
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// maxBytes bounds a policy file.
const maxBytes = 1 << 20

// Parse reads a policy in YAML or JSON. Unknown fields are refused.
func Parse(r io.Reader) (Policy, error) {
	var p Policy
	data, err := io.ReadAll(io.LimitReader(r, maxBytes))
	if err != nil {
		return p, err
	}
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		return p, fmt.Errorf("not a policy: %w", err)
	}
	return p, p.Validate()
}
