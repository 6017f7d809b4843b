package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/topology"
)

// HostEntry is one entry of a file of hosts: a captured host, or a number of idle machines
// that are described in one line.
type HostEntry struct {
	Name string `json:"name"`
	// Count makes that many hosts, NAME-1, NAME-2 and so on; 0: one host called NAME.
	Count int `json:"count,omitempty"`
	// Inventory is the path of an inventory ('numavisor capture'), from the folder of the file on.
	Inventory string `json:"inventory,omitempty"`
	// Machine is a topology in one line (topology.Synthetic): "nodes:8 cores:16 memory:96G".
	Machine    string  `json:"machine,omitempty"`
	Rack       string  `json:"rack,omitempty"`
	Preference float64 `json:"preference,omitempty"`
	Cordoned   bool    `json:"cordoned,omitempty"`
}

// mostCopies bounds the hosts and VMs that one entry makes.
const mostCopies = 100_000

// ParseHosts reads a file of hosts, in YAML or JSON. The error is one *strictyaml.Error.
func ParseHosts(r io.Reader) ([]HostEntry, error) {
	var file struct {
		Hosts []HostEntry `json:"hosts"`
	}
	_, err := strictyaml.Decode(r, strictyaml.Format{Kind: "hosts", MaxBytes: 16 << 20}, &file, func() error {
		var errs []error
		for i, h := range file.Hosts {
			errs = append(errs, h.check(fmt.Sprintf("hosts[%d]", i)))
		}
		if len(file.Hosts) == 0 {
			errs = append(errs, &strictyaml.FieldError{Field: "hosts", Value: "empty", Allowed: "at least one host"})
		}
		return errors.Join(errs...)
	})
	return file.Hosts, err
}

func (h *HostEntry) check(at string) error {
	var errs []error
	wrong := func(field, value, allowed string) {
		errs = append(errs, &strictyaml.FieldError{Field: strictyaml.Join(at, field), Value: value, Allowed: allowed})
	}
	if h.Name == "" {
		wrong("name", "empty", "a name that no other host has")
	}
	if h.Count < 0 || h.Count > mostCopies {
		wrong("count", fmt.Sprint(h.Count), fmt.Sprintf("0 to %d", mostCopies))
	}
	if (h.Inventory == "") == (h.Machine == "") {
		wrong("machine", cmp.Or(h.Machine, "empty"), "either a machine or an inventory")
	}
	if h.Machine != "" {
		if _, err := topology.Synthetic(h.Machine); err != nil {
			wrong("machine", h.Machine, fmt.Sprintf("words such as nodes:8 cores:16 memory:64G (%v)", err))
		}
	}
	return errors.Join(errs...)
}

// Names returns the names of the hosts that an entry makes.
func (h *HostEntry) Names() []string { return copies(h.Name, h.Count) }

func copies(name string, count int) []string {
	if count == 0 {
		return []string{name}
	}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i+1)
	}
	return names
}

// RequestEntry is one entry of a file of requests: a number of equal VMs, or the
// removal of one that an earlier entry placed.
type RequestEntry struct {
	Name     string         `json:"name,omitempty"`
	Count    int            `json:"count,omitempty"` // VMs NAME-1, NAME-2 and so on; 0: one VM called NAME
	Affinity fleet.Affinity `json:"affinity,omitzero"`
	Spec     guest.Spec     `json:"spec,omitzero"`
	Remove   string         `json:"remove,omitempty"` // the name of the VM to remove; excludes all other fields
	// MachineType is kvm (default), qemu or xen: VMs of a type go to hosts that make it.
	MachineType string `json:"machine_type,omitempty"`
}

// Names returns the names of the VMs that an entry requests; none for a removal.
func (q *RequestEntry) Names() []string {
	if q.Remove != "" {
		return nil
	}
	return copies(q.Name, q.Count)
}

// ParseRequests reads a file of requests, in YAML or JSON. The error is one *strictyaml.Error.
func ParseRequests(r io.Reader) ([]RequestEntry, error) {
	var file struct {
		Requests []RequestEntry `json:"requests"`
	}
	_, err := strictyaml.Decode(r, strictyaml.Format{Kind: "requests", MaxBytes: 64 << 20}, &file, func() error {
		var errs []error
		placed := map[string]bool{}
		for i := range file.Requests {
			errs = append(errs, file.Requests[i].check(fmt.Sprintf("requests[%d]", i), placed))
		}
		return errors.Join(errs...)
	})
	return file.Requests, err
}

// check checks an entry; placed are the VMs of the entries before.
func (q *RequestEntry) check(at string, placed map[string]bool) error {
	wrong := func(field, value, allowed string) error {
		return &strictyaml.FieldError{Field: strictyaml.Join(at, field), Value: value, Allowed: allowed}
	}
	switch {
	case q.Remove != "" && (q.Name != "" || q.Spec.VCPUs != 0):
		return wrong("remove", q.Remove, "only in an entry of its own")
	case q.Remove != "" && !placed[q.Remove]:
		return wrong("remove", q.Remove, "a VM that an earlier entry requests")
	case q.Remove != "":
		delete(placed, q.Remove)
		return nil
	case q.Name == "":
		return wrong("name", "empty", "a name that no other VM of the file has")
	case !slices.Contains([]string{inventory.MachineKVM, inventory.MachineQEMU, inventory.MachineXen},
		machineOf(q.MachineType)):
		return wrong("machine_type", q.MachineType, "kvm, qemu, xen")
	case q.Count < 0 || q.Count > mostCopies:
		return wrong("count", fmt.Sprint(q.Count), fmt.Sprintf("0 to %d", mostCopies))
	}
	for _, name := range copies(q.Name, q.Count) {
		if placed[name] {
			return wrong("name", name, "a name that no other VM of the file has")
		}
		placed[name] = true
	}
	_, err := q.Spec.Normalize()
	return errors.Join(within(strictyaml.Join(at, "spec"), err),
		within(strictyaml.Join(at, "affinity"), q.Affinity.Validate()))
}

// within puts the fields of errors into the group at a path.
func within(path string, err error) error {
	joined, several := err.(interface{ Unwrap() []error })
	var field *strictyaml.FieldError
	switch {
	case err == nil:
		return nil
	case several:
		errs := slices.Clone(joined.Unwrap())
		for i := range errs {
			errs[i] = within(path, errs[i])
		}
		return errors.Join(errs...)
	case errors.As(err, &field):
		return &strictyaml.FieldError{Field: path + "." + field.Field, Value: field.Value, Allowed: field.Allowed}
	}
	return err
}
