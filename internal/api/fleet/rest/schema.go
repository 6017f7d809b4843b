package rest

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// amount is the schema of an amount of memory.
type amount struct{}

// mostBytes is 1 EiB: more memory than any fleet has, and a number that all clients represent exactly.
const mostBytes = float64(1 << 60)

// amountPattern matches the amounts that topology.ParseBytes reads.
const amountPattern = `^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB])?|[bB])?$`

// Schema implements huma.SchemaProvider.
func (amount) Schema(huma.Registry) *huma.Schema {
	least, most := 0.0, mostBytes
	return &huma.Schema{Description: "bytes, or text such as 16G", AnyOf: []*huma.Schema{
		{Type: huma.TypeInteger, Format: "int64", Minimum: &least, Maximum: &most},
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

// statusesOf returns the statuses of the problems that an operation may answer with.
func (r *routes) statusesOf(op *fleetapi.Operation, described *huma.Operation) []int {
	all := []int{http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusServiceUnavailable}
	if op.Role != "" {
		all = append(all, http.StatusUnauthorized)
	}
	if r.alone && op.Fleet {
		all = append(all, http.StatusNotImplemented)
	}
	if op.Role != "" && (op.Role != fleetapi.Viewer || op.Scope == fleetapi.OfFleet) {
		all = append(all, http.StatusForbidden)
	}
	if strings.Contains(op.Path, "{") || op.Scope == fleetapi.OfProject || op.Path == "/v1/adopt" {
		all = append(all, http.StatusNotFound)
		if op.Method != http.MethodGet {
			all = append(all, http.StatusConflict)
		}
	}
	if slices.ContainsFunc(described.Parameters, func(p *huma.Param) bool { return p.Name == "If-Match" }) {
		all = append(all, http.StatusPreconditionFailed)
	}
	if described.RequestBody != nil {
		all = append(all, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType)
	}
	return all
}

// problems describes the answers to requests that fail, in place of huma's, which would allow any status.
func (r *routes) problems() {
	schema := r.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fleetapi.Problem](), true, "Problem")
	for _, op := range fleetapi.Operations() {
		item := r.api.OpenAPI().Paths[op.Path]
		for _, described := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if described == nil || described.OperationID != op.ID {
				continue
			}
			delete(described.Responses, "default")
			for _, status := range r.statusesOf(&op, described) {
				described.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status),
					Content: map[string]*huma.MediaType{"application/problem+json": {Schema: schema}}}
			}
		}
	}
}

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
	schemas["VMCreate"].Examples = []any{map[string]any{"project": fleetapi.DefaultProject,
		"labels": map[string]string{"tier": "web"},
		"spec": map[string]any{"name": "web-1", "vcpus": 2, "memory": "4G",
			"cpu": map[string]string{"binding": string(guest.CPUExclusive)}}}}
	return nil
}
