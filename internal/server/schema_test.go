package server

import (
	"net/http"
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
