package guest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/topology"
)

// FlagSpec is the part of a spec that command-line flags set.
type FlagSpec struct{ flags []*specFlag }

// specFlag remembers the values given and replays them on a spec.
type specFlag struct {
	name   string
	kind   string // shown in the help
	values []string
	many   bool // may be repeated; else the last value counts
	set    func(s *Spec, value string) error

	choices []string // the words that set takes; nil: it takes others, too
}

// BindFlags defines a flag for each field of a spec (docs/spec.md), or only
// those that are named.
func BindFlags(fs *pflag.FlagSet, names ...string) *FlagSpec {
	f := &FlagSpec{}
	add := func(name, kind, usage string, set func(*Spec, string) error) *specFlag {
		one := &specFlag{name: name, kind: kind, set: set}
		if len(names) > 0 && !slices.Contains(names, name) {
			return one
		}
		f.flags = append(f.flags, one)
		flag := fs.VarPF(one, name, "", usage)
		if kind == "bool" {
			flag.NoOptDefVal = "true"
		}
		return one
	}
	add("name", "name", "the VM's name", func(s *Spec, v string) error { s.Name = v; return nil })
	add("vcpus", "n", "number of vCPUs", func(s *Spec, v string) error { return number(&s.VCPUs, v) })
	add("memory", "size", "memory, for example 16G", func(s *Spec, v string) error { return size(&s.Memory, v) })
	add("page-size", "size", "size of the huge pages behind it, for example 2M; 0: the host's small pages",
		func(s *Spec, v string) error { return size(&s.PageSize, v) })
	f.cpuFlags(add)
	choose(add("memory-binding", "mode", "none, preferred, strict, interleave or restrictive (default preferred)", nil),
		func(s *Spec) *MemoryMode { return &s.Binding.Mode },
		MemoryNone, MemoryPreferred, MemoryStrict, MemoryInterleave, MemoryRestrictive)
	add("immediate", "bool", "allocate all memory at start",
		func(s *Spec, v string) error { return truth(&s.Binding.Immediate, v) })
	add("topology", "shape",
		"NUMA topology that the VM sees: off, auto, mirror or a number of equal cells (default auto)",
		setTopology).choices = []string{string(TopologyOff), string(TopologyAuto), string(TopologyMirror)}
	add("cells", "list", "cells that the VM sees, as vCPUs:memory, for example 4:8G,4:8G", setCells)
	f.limitFlags(add)
	add("device", "address", "PCI device near which the VM belongs: ADDRESS[,required][,passthrough]; may be "+
		"repeated", addDevice).many = true
	add(
		"movable",
		"bool",
		"keep memory movable while the VM runs (default true; false with passthrough devices)",
		func(s *Spec, v string) error {
			movable := true
			err := truth(&movable, v)
			s.Movable = &movable
			return err
		},
	)
	return f
}

type addFlag func(name, kind, usage string, set func(*Spec, string) error) *specFlag

func (f *FlagSpec) cpuFlags(add addFlag) {
	helpers := []HelperPolicy{HelperNodes, HelperHousekeeping, HelperExclusive, HelperNone}
	choose(add("cpu-binding", "mode",
		"none, range (any CPU of the nodes) or exclusive (one CPU each) (default range)", nil),
		func(s *Spec) *CPUMode { return &s.CPU.Binding }, CPUNone, CPURange, CPUExclusive)
	choose(add("smt", "policy",
		"for exclusive binding: any, prefer (siblings together), require, or isolate (siblings idle) (default any)",
		nil),
		func(s *Spec) *SMTPolicy { return &s.CPU.SMT }, SMTAny, SMTPrefer, SMTRequire, SMTIsolate)
	choose(add("emulator", "policy",
		"where emulator threads run: nodes, housekeeping, exclusive or none (default nodes)", nil),
		func(s *Spec) *HelperPolicy { return &s.CPU.Emulator }, helpers...)
	choose(add("sharing", "mode",
		"handoff: the VM mirrors its nodes' CPUs and is granted some of them at a time, by demand; scale: the number "+
			"of vCPUs that it uses follows its demand", nil),
		func(s *Spec) *SharingMode { return &s.CPU.Sharing }, SharingHandoff, SharingScale)
	add("min-vcpus", "n", "with --sharing: CPUs that the VM always has, or vCPUs that it always uses (default 1)",
		func(s *Spec, v string) error { return number(&s.CPU.MinVCPUs, v) })
	add("weight", "n", "with --sharing: share of the CPUs if they do not suffice (default 100)",
		func(s *Spec, v string) error { return number(&s.CPU.Weight, v) })
	add("home", "node", "with --sharing handoff: node whose CPUs the VM takes first and releases last",
		func(s *Spec, v string) error {
			s.CPU.Home = new(topology.NodeID)
			return number((*int)(s.CPU.Home), v)
		})
	add("io-threads", "n", "number of I/O threads",
		func(s *Spec, v string) error { return number(&s.CPU.IOThreads, v) })
	choose(add("io-thread-policy", "policy",
		"where I/O threads run: nodes, housekeeping, exclusive or none (default nodes)", nil),
		func(s *Spec) *HelperPolicy { return &s.CPU.IOPolicy }, helpers...)
}

// choose defines a flag for a field of the spec that takes one of several
// words.
func choose[T ~string](flag *specFlag, field func(*Spec) *T, words ...T) {
	flag.set = func(s *Spec, v string) error { return word(field(s), v, words...) }
	for _, w := range words {
		flag.choices = append(flag.choices, string(w))
	}
}

// Choices returns the words that flags take, by the flag's name, for flags that
// take words.
func (f *FlagSpec) Choices() map[string][]string {
	all := map[string][]string{}
	for _, one := range f.flags {
		if one.choices != nil {
			all[one.name] = one.choices
		}
	}
	return all
}

func (f *FlagSpec) limitFlags(add addFlag) {
	add("max-distance", "n", "greatest SLIT distance between the VM's nodes; 0: no limit",
		func(s *Spec, v string) error { return number(&s.Limits.MaxDistance, v) })
	choose(add("max-class", "class", "farthest class between the VM's nodes: local, neighbour or remote", nil),
		func(s *Spec) *topology.Class { return &s.Limits.MaxClass },
		topology.Local, topology.Neighbour, topology.Remote)
	add("nodes", "list", "use only these nodes, for example 0-1",
		func(s *Spec, v string) error { return set(&s.Limits.Nodes, v) })
	add("cpus", "list", "use only these CPUs, for example 0-15,32",
		func(s *Spec, v string) error { return set(&s.Limits.CPUs, v) })
	add("pool", "name", "use the CPUs of this CPU pool (Xen)",
		func(s *Spec, v string) error { s.Limits.Pool = v; return nil })
	add("max-nodes", "n", "greatest number of nodes; 0: no limit",
		func(s *Spec, v string) error { return number(&s.Limits.MaxNodes, v) })
}

// Changed reports whether any flag of the spec was given.
func (f *FlagSpec) Changed() bool {
	return slices.ContainsFunc(f.flags, func(o *specFlag) bool { return len(o.values) > 0 })
}

// Apply returns the spec with the flags' values; fields without a flag stay
// unchanged. Devices from flags replace the spec's. Apply neither checks the
// result nor fills in defaults: see Normalize.
func (f *FlagSpec) Apply(s Spec) (Spec, error) {
	if f.given("topology") && f.given("cells") {
		return Spec{}, errors.New("--topology and --cells both say what cells the VM sees; give one of them")
	}
	if f.given("device") {
		s.Devices = nil
	}
	for _, o := range f.flags {
		for _, v := range o.values {
			if err := o.set(&s, v); err != nil {
				return Spec{}, fmt.Errorf("--%s %q: %w", o.name, v, err)
			}
		}
	}
	return s, nil
}

func (f *FlagSpec) given(name string) bool {
	return slices.ContainsFunc(f.flags, func(o *specFlag) bool { return o.name == name && len(o.values) > 0 })
}

// Set, String and Type are pflag.Value.

// Set checks the value by applying it to a scratch spec.
func (o *specFlag) Set(value string) error {
	if err := o.set(&Spec{}, value); err != nil {
		return err
	}
	if !o.many {
		o.values = nil
	}
	o.values = append(o.values, value)
	return nil
}

// String returns the values given, "" for none.
func (o *specFlag) String() string { return strings.Join(o.values, " ") }

// Type is the word for the value in the help.
func (o *specFlag) Type() string { return o.kind }
