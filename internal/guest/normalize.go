package guest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// FieldError is a field of a spec with a value that is not allowed. Values
// that are right each by itself but contradict are told of the later field.
type FieldError struct {
	Field   string // path in the spec: "limits.max_distance", "topology.cells[1].memory"
	Value   string // as given
	Allowed string
}

// Error names field, value and what is allowed.
func (e *FieldError) Error() string {
	return fmt.Sprintf("spec: %s is %s; allowed: %s", e.Field, e.Value, e.Allowed)
}

// Bounds of what a spec may ask for. They catch slips (bytes for gigabytes),
// no host is this large.
const (
	maxVCPUs     = 4096              // KVM_MAX_VCPUS is 4096 at most (arch/x86/include/asm/kvm_host.h)
	maxMemory    = 64 * topology.TiB // 46 bits of physical address
	maxIOThreads = 1024
	smallPage    = 4 * topology.KiB // memory is counted in whole pages
)

// Normalize returns the spec with every default filled in, or an error that
// joins one *FieldError for each field at fault. The name may be empty, since
// placing needs none. Normalizing twice changes nothing more.
func (s Spec) Normalize() (Spec, error) {
	s = s.withDefaults()
	c := &checker{spec: &s}
	c.name()
	c.size()
	c.cpu()
	c.memory()
	c.cells()
	c.limits()
	c.devices()
	if err := errors.Join(c.errs...); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// withDefaults never changes what the caller's spec points to.
func (s Spec) withDefaults() Spec {
	s.Topology.Cells = slices.Clone(s.Topology.Cells)
	s.Devices = slices.Clone(s.Devices)
	setDefault(&s.CPU.Binding, CPURange)
	setDefault(&s.CPU.SMT, SMTAny)
	setDefault(&s.CPU.Emulator, HelperNodes)
	setDefault(&s.CPU.IOPolicy, HelperNodes)
	setDefault(&s.Binding.Mode, MemoryPreferred)
	if s.PageSize > 0 {
		s.Binding.Immediate = true
	}
	s.topologyDefaults()
	for i := range s.Devices {
		s.Devices[i].Address = fullAddress(s.Devices[i].Address)
		if s.Devices[i].Passthrough && s.Movable == nil {
			fixed := false // vfio pins all of the guest's memory
			s.Movable = &fixed
		}
	}
	return s
}

func (s *Spec) topologyDefaults() {
	t := &s.Topology
	if t.Mode == "" {
		switch {
		case t.Count != 0 || len(t.Cells) > 0:
			t.Mode = TopologyCells
		case s.Binding.Mode == MemoryRestrictive:
			t.Mode = TopologyOff // it cannot place cells, see placesCells
		default:
			t.Mode = TopologyAuto
		}
	}
	if len(t.Cells) == 0 {
		return
	}
	if t.Count == 0 && t.Mode == TopologyCells {
		t.Count = len(t.Cells)
	}
	vcpus, memory := t.sum()
	setDefault(&s.VCPUs, vcpus)
	setDefault(&s.Memory, memory)
}

// sum adds up the listed cells.
func (t *TopologySpec) sum() (vcpus int, memory topology.Bytes) {
	for _, c := range t.Cells {
		vcpus += c.VCPUs
		memory += c.Memory
	}
	return vcpus, memory
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// checker collects what is wrong with a spec.
type checker struct {
	spec *Spec
	errs []error
}

func (c *checker) fail(field string, value any, allowed string, args ...any) {
	if len(c.errs) >= maxErrors {
		return
	}
	text := fmt.Sprint(value)
	if s, ok := value.(string); ok {
		text = shorten(fmt.Sprintf("%q", s))
	}
	c.errs = append(c.errs, &FieldError{Field: field, Value: text, Allowed: fmt.Sprintf(allowed, args...)})
}

// between checks a number.
func (c *checker) between(field string, value, least, most int) {
	if value < least || value > most {
		c.fail(field, value, "%d to %d", least, most)
	}
}

// oneOf checks a word.
func oneOf[T ~string](c *checker, field string, value T, allowed ...T) {
	if slices.Contains(allowed, value) {
		return
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	c.fail(field, string(value), "%s", strings.Join(words, ", "))
}
