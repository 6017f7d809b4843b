package rest

import (
	"fmt"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/numavisor/numavisor/internal/topology"
)

// amount is the schema of an amount of memory.
type amount struct{}

// amountPattern matches the amounts that topology.ParseBytes reads.
const amountPattern = `^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB])?|[bB])?$`

// Schema implements huma.SchemaProvider.
func (amount) Schema(huma.Registry) *huma.Schema {
	least := 0.0
	return &huma.Schema{Description: "bytes, or text such as 16G", AnyOf: []*huma.Schema{
		{Type: huma.TypeInteger, Format: "int64", Minimum: &least},
		{Type: huma.TypeString, Examples: []any{"16G"}, Pattern: amountPattern},
	}}
}

// list is the schema of a set of nodes or CPUs.
type list struct{}

// listPattern matches the lists that topology.ParseSet reads.
const listPattern = `^([0-9]+(-[0-9]+)?(:[0-9]+/[0-9]+)?(,[0-9]+(-[0-9]+)?(:[0-9]+/[0-9]+)?)*)?$`

// Schema implements huma.SchemaProvider.
func (list) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: listPattern, Examples: []any{"0-3,8"}}
}

// aliases gives types that are written as text the schema of that text.
func aliases(r huma.Registry) {
	r.RegisterTypeAlias(reflect.TypeFor[topology.Bytes](), reflect.TypeFor[amount]())
	r.RegisterTypeAlias(reflect.TypeFor[topology.NodeSet](), reflect.TypeFor[list]())
	r.RegisterTypeAlias(reflect.TypeFor[topology.CPUSet](), reflect.TypeFor[list]())
}

const (
	// namePattern matches text without '/' and control characters that is not only spaces and dots.
	namePattern = `^[^/\x00-\x1f\x7f]*[^/\x00-\x1f\x7f\s.][^/\x00-\x1f\x7f]*$`
	// labelPattern matches the keys of labels.
	labelPattern   = `^[^=\n]{1,100}$`
	longestName    = 240
	longestLabel   = 200
	longestProject = 64
	// projectPattern matches names of projects, and the word for all projects.
	projectPattern = `^([*]|[A-Za-z0-9][A-Za-z0-9._@-]{0,63})$`
)

// narrow adds to the schemas of requests what the tags of their fields cannot say, so that the document promises no
// more than the server accepts.
func narrow(schemas map[string]*huma.Schema) error {
	names := func(s *huma.Schema) { s.Pattern, s.MaxLength = namePattern, new(longestName) }
	labels := func(s *huma.Schema) {
		s.Extensions = map[string]any{"propertyNames": &huma.Schema{Type: huma.TypeString, Pattern: labelPattern}}
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
			values.MaxLength = new(longestLabel)
			values.PrecomputeMessages()
		}
	}
	for _, n := range []struct {
		schema, property string
		by               func(*huma.Schema)
	}{
		{"GuestSpec", "name", names}, {"FleetAffinity", "group", names},
		{"VMCreate", "labels", labels}, {"HostEdit", "labels", labels},
		{"UserEdit", "projects", func(s *huma.Schema) {
			s.Items.Pattern, s.Items.MaxLength = projectPattern, new(longestProject)
		}},
	} {
		of := schemas[n.schema]
		if of == nil || of.Properties[n.property] == nil {
			return fmt.Errorf("the OpenAPI document has no %s.%s", n.schema, n.property)
		}
		n.by(of.Properties[n.property])
		of.PrecomputeMessages()
	}
	return nil
}
