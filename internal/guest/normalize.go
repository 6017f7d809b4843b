package guest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Upper bounds for a spec. They catch mistakes (bytes for gigabytes); no host
// is this large.
const (
	maxVCPUs     = 4096              // KVM_MAX_VCPUS is 4096 at most (arch/x86/include/asm/kvm_host.h)
	maxMemory    = 64 * topology.TiB // 46 bits of physical address
	maxIOThreads = 1024
	smallPage    = 4 * topology.KiB // memory is counted in whole pages
)

// Normalize returns the spec with every default filled in, or an error that
// joins one *strictyaml.FieldError for each field at fault. The name may be empty, since
// placing needs none. Normalizing twice changes nothing more.
func (s Spec) Normalize() (Spec, error) {
	s = s.withDefaults()
	c := &checker{spec: &s}
	c.name()
	c.size()
	c.cpu()
	c.sharing()
	c.memory()
	c.cells()
	c.limits()
	c.devices()
	if err := errors.Join(c.errs...); err != nil {
		return Spec{}, fmt.Errorf("spec: %w", err)
	}
	return s, nil
}

// withDefaults never changes values that the caller's spec points to.
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
	s.sharingDefaults()
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

// checker collects the errors of a spec.
type checker struct {
	spec *Spec
	errs []error
}

// maxErrors limits the errors that Normalize reports: a foreign file may
// contain a hundred thousand.
const maxErrors = 20

func (c *checker) fail(field string, value any, allowed string, args ...any) {
	if len(c.errs) >= maxErrors {
		return
	}
	given := fmt.Sprint(value)
	if s, ok := value.(string); ok {
		given = text.Shorten(strconv.Quote(s), 60)
	}
	c.errs = append(c.errs,
		&strictyaml.FieldError{Field: field, Value: given, Allowed: fmt.Sprintf(allowed, args...)})
}

// between checks a number.
func (c *checker) between(field string, value, least, most int) {
	if value < least || value > most {
		c.fail(field, value, "%d to %d", least, most)
	}
}

// oneOf checks a word.
func oneOf[T interface {
	~string
	strictyaml.Worded
}](c *checker, field string, value T) {
	if words := value.Words(); !slices.Contains(words, string(value)) {
		c.fail(field, string(value), "%s", strings.Join(words, ", "))
	}
}
