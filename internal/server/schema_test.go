package server

import (
	"net/http"
	"slices"
	"testing"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// property is a part of a schema.
type property struct {
	Enum       []string `json:"enum"`
	Minimum    *float64 `json:"minimum"`
	Maximum    *float64 `json:"maximum"`
	MultipleOf *float64 `json:"multipleOf"`
	MaxLength  *int     `json:"maxLength"`
	MaxItems   *int     `json:"maxItems"`
	Pattern    string   `json:"pattern"`
	Ref        string   `json:"$ref"`
}

// The words that the schemas allow are those of the types.
func TestSchema_EnumerationsAreThoseOfTheTypes(t *testing.T) {
	r := newRig(t)
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]property `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if status := ask(t, r.anonymous(), r.url, http.MethodGet, "/openapi.json", "", "", &doc); status != http.StatusOK {
		t.Fatal(status)
	}
	for _, c := range []struct {
		schema, field string
		want          []string
	}{
		{"GuestCPUSpec", "binding", guest.CPUMode("").Words()},
		{"GuestCPUSpec", "smt", guest.SMTPolicy("").Words()},
		{"GuestCPUSpec", "emulator", guest.HelperPolicy("").Words()},
		{"GuestCPUSpec", "io_thread_policy", guest.HelperPolicy("").Words()},
		{"GuestCPUSpec", "sharing", guest.SharingMode("").Words()},
		{"GuestMemorySpec", "mode", guest.MemoryMode("").Words()},
		{"GuestTopologySpec", "mode", guest.TopologyMode("").Words()},
		{"GuestLimits", "max_class", topology.Class("").Words()},
		{"UserEdit", "role", fleetapi.Role("").Words()},
	} {
		if got := doc.Components.Schemas[c.schema].Properties[c.field].Enum; !sameWords(got, c.want) {
			t.Errorf("%s.%s: the document allows %q, the server %q", c.schema, c.field, got, c.want)
		}
	}
	for field, p := range doc.Components.Schemas["VMMigrate"].Properties {
		if field == "max_downtime_ms" && (p.Minimum == nil || *p.Minimum != 1 || p.Maximum == nil) {
			t.Errorf("VMMigrate.%s: %+v", field, p)
		}
	}
	for _, field := range []string{"max_downtime_ms", "post_copy", "copy_storage"} {
		if _, has := doc.Components.Schemas["VMMigrate"].Properties[field]; !has {
			t.Errorf("the document has no VMMigrate.%s", field)
		}
	}
}

func sameWords(a, b []string) bool {
	has := map[string]bool{}
	for _, w := range a {
		has[w] = true
	}
	for _, w := range b {
		if !has[w] {
			return false
		}
	}
	return len(a) == len(b)
}

// What a host would refuse later is refused when it is asked for.
func TestCreate_RefusesWhatNoHostMakes(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	for name, change := range map[string]func(*fleetapi.VMCreate){
		"memory that is no whole number of MiB": func(v *fleetapi.VMCreate) { v.Spec.Memory = topology.GiB + 4096 },
		"a machine type":                        func(v *fleetapi.VMCreate) { v.Machine.Type = "vax" },
		"an architecture":                       func(v *fleetapi.VMCreate) { v.Machine.Arch = "vax" },
		"a CPU model":                           func(v *fleetapi.VMCreate) { v.Machine.CPU = "EPYC" },
		"an initrd without a kernel":            func(v *fleetapi.VMCreate) { v.Machine.Initrd = "/initrd" },
		"a command line without a kernel":       func(v *fleetapi.VMCreate) { v.Machine.Cmdline = "quiet" },
		"a group of spaces":                     func(v *fleetapi.VMCreate) { v.Affinity.Group = "  " },
		"a label with =":                        func(v *fleetapi.VMCreate) { v.Labels = map[string]string{"a=b": ""} },
		"a distance that no node has":           func(v *fleetapi.VMCreate) { v.Spec.Limits.MaxDistance = 5 },
	} {
		v := vmOf("vm", 2, topology.GiB)
		change(&v)
		if _, err := r.admin.CreateVM(t.Context(), v, fleetapi.Change{DryRun: true}); problemType(err) !=
			fleetapi.ProblemInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{DryRun: true}); err != nil {
		t.Errorf("a VM that can be made: %v", err)
	}
}

// documented is an operation of the OpenAPI document.
type documented struct {
	ID        string `json:"operationId"`
	Responses map[string]struct {
		Content map[string]struct {
			Schema map[string]any `json:"schema"`
		} `json:"content"`
	} `json:"responses"`
}

// Each operation has its statuses in the document: a test of the served document sees any other one.
func TestSchema_NamesTheStatusesOfEachOperation(t *testing.T) {
	r := newRig(t)
	var doc struct {
		Paths map[string]map[string]documented `json:"paths"`
	}
	if status := ask(t, r.anonymous(), r.url, http.MethodGet, "/openapi.json", "", "", &doc); status != http.StatusOK {
		t.Fatal(status)
	}
	want := map[string][]string{
		"info":           {"200", "422", "500", "503"},
		"whoami":         {"200", "401", "422", "500", "503"},
		"list-users":     {"200", "401", "403", "422", "500", "503"},
		"get-vm":         {"200", "401", "404", "422", "500", "503"},
		"start-vm":       {"200", "401", "403", "404", "409", "412", "422", "500", "503"},
		"delete-user":    {"204", "401", "403", "404", "409", "412", "422", "500", "503"},
		"create-vm":      {"200", "201", "400", "401", "403", "404", "408", "409", "413", "415", "422", "500", "503"},
		"adopt-vm":       {"200", "201", "400", "401", "403", "404", "408", "409", "413", "415", "422", "500", "503"},
		"edit-host":      {"200", "400", "401", "403", "404", "408", "409", "412", "413", "415", "422", "500", "503"},
		"watch-events":   {"200", "401", "422", "500", "503"},
		"create-join":    {"201", "400", "401", "403", "408", "413", "415", "422", "500", "503"},
		"get-inventory":  {"200", "401", "403", "404", "422", "500", "503"},
		"delete-project": {"204", "401", "403", "404", "409", "412", "422", "500", "503"},
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			var got []string
			for status, a := range op.Responses {
				got = append(got, status)
				if problem := a.Content["application/problem+json"]; status >= "400" &&
					problem.Schema["$ref"] != "#/components/schemas/Problem" {
					t.Errorf("%s, status %s: %v", op.ID, status, a.Content)
				}
			}
			slices.Sort(got)
			if slices.Contains(got, "default") {
				t.Errorf("%s %s: any status is documented", method, path)
			}
			if w, has := want[op.ID]; has && !slices.Equal(got, w) {
				t.Errorf("%s: statuses %v, want %v", op.ID, got, w)
			}
			delete(want, op.ID)
		}
	}
	if len(want) > 0 {
		t.Errorf("the document does not have %v", want)
	}
	stream := doc.Paths["/v1/events"]["get"].Responses["200"].Content["text/event-stream"].Schema
	if stream["type"] != "object" {
		t.Errorf("the schema of one server-sent event: %v", stream)
	}
}
