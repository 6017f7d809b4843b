package inventory_test

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var update = flag.Bool("update", false, "rewrite docs/inventory.schema.json")

// The schema in docs matches what the code writes; -update rewrites it.
func TestSchemaMatchesTheCode(t *testing.T) {
	const file = "../../docs/inventory.schema.json"
	lists := map[reflect.Type]string{
		reflect.TypeFor[topology.CPUSet](): "CPUs, as a Linux list", reflect.TypeFor[topology.NodeSet](): "nodes, " +
			"as a Linux list", reflect.TypeFor[guest.VCPUSet](): "vCPUs, as a Linux list",
	}
	r := &jsonschema.Reflector{Mapper: func(of reflect.Type) *jsonschema.Schema {
		if about, ok := lists[of]; ok {
			return &jsonschema.Schema{Type: "string", Pattern: `^(\d+(-\d+)?(,\d+(-\d+)?)*)?$`, Description: about}
		}
		switch of {
		case reflect.TypeFor[topology.Bytes]():
			return &jsonschema.Schema{Type: "integer", Minimum: "0", Description: "bytes"}
		case reflect.TypeFor[inventory.Ref]():
			return &jsonschema.Schema{
				Type:        "string",
				Pattern:     `^(host|node \d+)(: .+)?$|^guest .+`,
				Description: "the host, a node, a part of one of these, or a guest by its name",
			}
		case reflect.TypeFor[topology.MemoryByNode]():
			return &jsonschema.Schema{Type: "object", AdditionalProperties: jsonschema.FalseSchema,
				PatternProperties: map[string]*jsonschema.Schema{
					"^[0-9]+$": {Type: "integer", Minimum: "0", Description: "bytes"},
				}}
		case reflect.TypeFor[time.Duration]():
			return &jsonschema.Schema{Type: "integer", Description: "nanoseconds"}
		}
		return nil
	}}
	schema := r.Reflect(&inventory.Host{})
	schema.ID = "https://numavisor.dev/inventory.schema.json"
	schema.Title = "Inventory of a host, as 'numavisor capture' writes it"
	want, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("docs/inventory.schema.json is not what the code writes (go test ./internal/inventory -update):\n%s",
			diff)
	}
}
