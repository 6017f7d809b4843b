package fleetapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Normalize checks a request to create a VM, and returns it with a complete spec.
func (v VMCreate) Normalize() (VMCreate, error) {
	spec, err := v.Machine.Fit(v.Spec)
	if err == nil {
		spec, err = spec.Normalize()
	}
	if err == nil && spec.Name == "" {
		err = errors.New("spec: name: needed")
	}
	if err == nil {
		err = wholeMiB(spec.Memory)
	}
	if err == nil {
		if err = v.Affinity.Validate(); err != nil {
			err = fmt.Errorf("affinity: %w", err)
		}
	}
	if err == nil {
		err = checkMachine(&v.Machine)
	}
	if err == nil {
		err = CheckLabels(v.Labels)
	}
	if err != nil {
		return v, NewProblem(ProblemInvalid, err.Error())
	}
	v.Spec = spec
	if v.Run == "" {
		v.Run = fleet.Running
	}
	return v, nil
}

// Of returns the spec of a VM in another size.
func (r VMResize) Of(s guest.Spec) (guest.Spec, error) {
	if r.VCPUs != 0 {
		s.VCPUs = r.VCPUs
	}
	if r.Memory != 0 {
		s.Memory = r.Memory
	}
	s, err := s.Normalize()
	if err == nil {
		err = wholeMiB(s.Memory)
	}
	if err != nil {
		return s, NewProblem(ProblemInvalid, err.Error())
	}
	return s, nil
}

// wholeMiB refuses a size that libvirt would round up.
func wholeMiB(memory topology.Bytes) error {
	if memory%topology.MiB != 0 {
		return fmt.Errorf("memory: %d bytes: allowed is a whole number of MiB", uint64(memory))
	}
	return nil
}

// mostDisks is how many disks of one kind have names.
const mostDisks = 26

// checkMachine refuses what the host would refuse later, and what it would misread: it writes these texts into files
// and commands. The schema of the API says the same; a host may also read records of an earlier server.
func checkMachine(m *fleet.Machine) error {
	switch {
	case m.Kernel == "" && (m.Initrd != "" || m.Cmdline != ""):
		return errors.New("machine: initrd and cmdline need a kernel")
	case len(m.Disks) > mostDisks:
		return fmt.Errorf("machine: %d disks: allowed are up to %d", len(m.Disks), mostDisks)
	}
	paths := []string{m.Kernel, m.Initrd, m.SerialLog}
	for _, d := range m.Disks {
		if d.Path == "" && (d.Pool == "" || d.Volume == "") {
			return errors.New("machine: disks: each needs a path, or a pool and a volume")
		}
		if d.Path != "" && d.Pool != "" {
			return errors.New("machine: disks: allowed is a path, or a pool and a volume, not both")
		}
		if d.Base != "" && d.Path == "" {
			return errors.New("machine: disks: a base needs the path of its clone")
		}
		paths = append(paths, d.Path, d.Base)
	}
	for _, p := range paths {
		if p != "" && (!strings.HasPrefix(p, "/") || slices.Contains(strings.Split(p, "/"), "..")) {
			return fmt.Errorf("machine: path %q: allowed are absolute paths without '..'", p)
		}
	}
	for _, text := range append(paths, m.Type, m.Arch, m.CPU, m.Cmdline, m.Network) {
		if strings.ContainsFunc(text, unicode.IsControl) {
			return errors.New("machine: control characters are not allowed")
		}
	}
	return nil
}

// CheckLabels bounds labels.
func CheckLabels(labels map[string]string) error {
	for key, value := range labels {
		if key == "" || len(key) > 100 || len(value) > 200 || strings.ContainsAny(key, "=\n") {
			return fmt.Errorf("labels: %.40q: allowed are keys of 1 to 100 bytes without '=', and values of up to 200",
				key)
		}
	}
	return nil
}
