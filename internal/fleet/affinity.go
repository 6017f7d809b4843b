package fleet

import "github.com/numavisor/numavisor/internal/strictyaml"

// Together says where the VMs of a group belong, at one level.
type Together string

// The rules of a group at a level.
const (
	AnyWhere Together = ""
	Same     Together = "same"      // all on one
	Differ   Together = "different" // each on its own
)

// Words returns the words that a file may use.
func (Together) Words() []string { return []string{string(Same), string(Differ)} }

// Affinity relates a VM to the other VMs of its group.
type Affinity struct {
	Group string `json:"group,omitempty"`
	// Racks: without a rule, a group is spread over racks where that costs little.
	Racks Together `json:"racks,omitempty" enum:"same,different" dependentRequired:"group"`
	Hosts Together `json:"hosts,omitempty" enum:"same,different" dependentRequired:"group"`
	// Nodes of one host: VMs on other hosts do not count.
	Nodes Together `json:"nodes,omitempty" enum:"same,different" dependentRequired:"group"`
}

// Validate checks that rules have a group and do not contradict each other.
func (a Affinity) Validate() error {
	for _, rule := range []struct {
		field string
		value Together
	}{{"racks", a.Racks}, {"hosts", a.Hosts}, {"nodes", a.Nodes}} {
		if rule.value != AnyWhere && rule.value != Same && rule.value != Differ {
			return &strictyaml.FieldError{Field: rule.field, Value: string(rule.value), Allowed: "same or different"}
		}
		if rule.value != AnyWhere && a.Group == "" {
			return &strictyaml.FieldError{Field: rule.field, Value: string(rule.value),
				Allowed: "only with a group: name the group of VMs that the rule is about"}
		}
	}
	switch {
	case a.Racks == Differ && a.Hosts == Same:
		return &strictyaml.FieldError{Field: "hosts", Value: string(Same), Allowed: "different, as racks are different"}
	case a.Hosts == Differ && a.Nodes == Same:
		return &strictyaml.FieldError{Field: "nodes", Value: string(Same), Allowed: "different, as hosts are different"}
	}
	return nil
}
