package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/libxl"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/room"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func placeCommand() *cobra.Command {
	var on hostFlags
	var specFile, xmlFile string
	var explain bool
	rule := ruleNumavisor
	c := &cobra.Command{
		Use:                   "place --spec FILE | --xml FILE | FLAGS",
		DisableFlagsInUseLine: true,
		Short:                 "Choose nodes and CPUs for a VM, and say why; changes nothing",
		Long: `Chooses the nodes and CPUs for a VM, on this host or on the host that a file
describes (--inventory, --root, --capabilities, --hwloc, --xl-info), and changes
nothing. For the host of a file, the default policy applies unless --policy names a
file. --xml reads a libvirt domain XML and prints it with a changed binding; the rest
stays as it is. Like create, place refuses if it cannot list all VMs of this host,
because it must know which CPUs and memory are free. It counts the loads that the
daemon of this host has measured; without a daemon, each vCPU counts as busy.

--rule libxl chooses the nodes as Xen's toolstack does by itself (fewest nodes, then
fewest vCPUs there, then most free memory), and shows their cost.`,
		Example: `  numavisor place --vcpus 8 --memory 16G --explain
  numavisor place --spec web.yaml --inventory host.json -o json
  virsh dumpxml web1 --inactive | numavisor place --xml - > bound.xml`,
		Args: takes(0, 0),
	}
	f := c.Flags()
	spec := guest.BindFlags(f)
	on.flags(c, withTopology, withPolicy, withoutLibvirt, withSources)
	f.StringVar(&specFile, "spec", "", "file with the spec, YAML or JSON ('-': standard input)")
	f.StringVar(&xmlFile, "xml", "", "file with a libvirt domain XML ('-': standard input)")
	f.BoolVar(&explain, "explain", false, "show the terms of the cost, and the rejected alternatives")
	f.StringVar(&rule, "rule", rule, "how nodes are chosen: numavisor, or libxl (as Xen does by itself)")
	socketFlag(c, &on.socket)
	exclusive(c, "spec", "xml")
	onlyHere(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		asked, xml, err := specFrom(c.Context(), specFile, xmlFile, spec)
		if err != nil {
			return err
		}
		return runPlace(c, &on, asked, xml, rule, explain)
	}
	return c
}

// runPlace decides where a VM belongs, and prints that or the XML that was bound.
func runPlace(c *cobra.Command, on *hostFlags, asked guest.Spec, xml []byte, rule string, explain bool) error {
	printNotes(c, &asked)
	asked.Name = cmp.Or(asked.Name, "new-vm")
	weights, err := on.readPolicy(c.Context())
	if err != nil {
		return err
	}
	on.notePolicyOfDaemon(c, on.socket, weights)
	inv, err := on.inventory(c)
	if err != nil {
		return err
	}
	if xml == nil {
		noteTaken(c, &inv, asked.Name)
	}
	p, why, err := placeBy(rule, &inv, asked, weights)
	if err != nil {
		return refusal(c, asked.Name, err, explain)
	}
	chosen := placed{Placement: p, Why: why, Gaps: inv.RoomHiddenBy()}
	if xml != nil {
		intent := guest.Intent{Host: inv.Identity(), Spec: asked.Resolve(&p), Placement: p}
		return emitBound(c, xml, intent, chosen, explain)
	}
	return emit(c, chosen, func(w io.Writer) { printPlaced(w, p, why, explain) })
}

// printNotes prints what in a request has no effect or a surprising one.
func printNotes(c *cobra.Command, asked *guest.Spec) {
	for _, note := range asked.Notes() {
		printf(c.ErrOrStderr(), "numavisor: note: %s\n", note)
	}
}

// The rules by which place chooses nodes.
const (
	ruleNumavisor = "numavisor"
	ruleLibxl     = "libxl"
)

// placeBy places a VM on the nodes that a rule chooses.
func placeBy(
	rule string, inv *inventory.Host, asked guest.Spec, p policy.Policy,
) (placed guest.Placement, why place.Why, err error) {
	switch rule {
	case ruleNumavisor:
	case ruleLibxl:
		nodes, ok := libxl.Choose(inv, &asked)
		if !ok {
			return placed, why, fmt.Errorf("VM %s: libxl would choose no nodes: no set of nodes has enough free "+
				"memory and CPUs, or the host has one node or more than 16", asked.Name)
		}
		asked.Limits.Nodes = nodes
	default:
		return placed, why, wrongUse("--rule %q: allowed are %s and %s", rule, ruleNumavisor, ruleLibxl)
	}
	return placeOn(inv, asked, p)
}

// placeOn places a VM on a host. A refusal of a new VM names the moves of others that
// make room for it; the room of one that exists is not theirs to give.
func placeOn(inv *inventory.Host, asked guest.Spec, p policy.Policy) (guest.Placement, place.Why, error) {
	placed, why, err := place.Place(place.Request{Host: inv, Spec: asked, Policy: p, Ignore: asked.Name})
	if _, taken := inv.Guest(asked.Name); err != nil && !taken {
		err = room.Advise(room.Request{Host: inv, Spec: asked, Policy: p}, err)
	}
	return placed, why, err
}

// noteTaken prints a note if a VM of the new VM's name exists.
func noteTaken(c *cobra.Command, inv *inventory.Host, name string) {
	if _, taken := inv.Guest(name); taken {
		printf(c.ErrOrStderr(), "numavisor: note: VM %[1]s exists; its resources count as free here, and 'numavisor "+
			"create' refuses the name. To move it: numavisor bind %[1]s --recompute\n", name)
	}
}

// refusal returns the error for a VM that was not placed. If asked to explain, it
// prints the reasons first, each on a line.
func refusal(c *cobra.Command, name string, err error, explain bool) error {
	var refused interface {
		error
		Text() string
	}
	if !explain || !errors.As(err, &refused) {
		return err
	}
	fmt.Fprint(c.ErrOrStderr(), text.VisibleLines(refused.Text()))
	return explainedError{err, name}
}

// explainedError is a refusal whose reasons are printed already: its message does
// not repeat them.
type explainedError struct {
	error
	vm string
}

func (e explainedError) Error() string { return "VM " + e.vm + " does not fit: see the reasons above" }

func (e explainedError) Unwrap() error { return e.error }

// emitBound prints a domain XML with its binding rewritten. The reasons go to
// standard error, so that a pipe receives only XML.
func emitBound(c *cobra.Command, xml []byte, intent guest.Intent, p placed, explain bool) error {
	bound, err := libvirt.Rewrite(xml, p.Placement, intent)
	if err != nil {
		return err
	}
	if explain {
		fmt.Fprintln(c.ErrOrStderr(), text.VisibleLines(strings.TrimRight(p.Why.Text(), "\n")))
	}
	p.XML = string(bound)
	return emit(c, p, func(w io.Writer) { fmt.Fprint(w, p.XML) })
}

// noteUncounted names the VMs and reservations whose CPUs and memory were not counted.
func noteUncounted(c *cobra.Command, notSeen string, hidden []inventory.Gap) {
	for _, g := range hidden {
		printf(c.ErrOrStderr(), "numavisor: note: %s %s; Numavisor counts their CPUs and memory as free\n", notSeen,
			g.What)
		printCauses(c.ErrOrStderr(), g.Why)
	}
}

// placed is what place prints.
type placed struct {
	Placement guest.Placement `json:"placement"`
	Why       place.Why       `json:"why"`
	XML       string          `json:"xml,omitempty"`  // of place --xml
	Gaps      []inventory.Gap `json:"gaps,omitempty"` // VMs and reservations that were not counted
}

func printPlaced(w io.Writer, p guest.Placement, why place.Why, explain bool) {
	if explain {
		fmt.Fprintln(w, text.VisibleLines(strings.TrimRight(why.Text(), "\n")))
	} else {
		printf(w, "%s\n", why.Summary)
	}
	fmt.Fprintln(w)
	rows := [][]string{{"CELL", "NODES", "MEMORY", "VCPUS", "CPUS"}}
	for _, cell := range p.Cells {
		var cpus []string
		if p.Handoff != nil {
			cpus = []string{text.Set(mirroredBy(p, cell))}
		}
		for _, v := range p.VCPUs {
			if p.Handoff == nil && cell.VCPUs.Contains(v.ID) &&
				(len(cpus) == 0 || cpus[len(cpus)-1] != text.Set(v.CPUs)) {
				cpus = append(cpus, text.Set(v.CPUs))
			}
		}
		rows = append(
			rows,
			[]string{fmt.Sprint(cell.ID), text.Set(cell.Nodes), cell.Memory.String(), text.Set(cell.VCPUs),
				strings.Join(cpus, " ")},
		)
	}
	columns(w, rows)
	printf(w, "\nvCPUs %s, memory %s within nodes %s, emulator on CPUs %s", p.CPUMode, p.MemoryMode, p.Nodes,
		text.Set(p.Emulator))
	if p.IOThreads > 0 {
		printf(w, ", %d I/O threads on CPUs %s", p.IOThreads, text.Set(p.IOThread))
	}
	fmt.Fprintln(w)
	if h := p.Handoff; h != nil {
		printf(w, "hand-over: at least %s, first CPUs %s; home node %d, anchor CPU %s, weight %d; the VM sees %d "+
			"sockets, %d dies in each, %d cores in a die, %d threads in a core\n", text.Count(h.Min, "CPU", "CPUs"),
			h.First, h.Home, p.VCPUs[0].CPUs, h.Weight, h.Seen.Sockets, h.Seen.Dies, h.Seen.Cores, h.Seen.Threads)
	}
	if s := p.Scale; s != nil {
		printf(w, "the number of vCPUs in use follows the demand: at least %d, weight %d\n", s.Min, s.Weight)
	}
	shared := p.Emulator.Union(p.IOThread).Intersect(vcpusOf(p))
	if p.CPUMode == guest.CPUExclusive && !shared.IsEmpty() {
		printf(w, "note: QEMU's own threads may run on CPUs of the exclusive vCPUs (%s); to keep them off: --emulator "+
			"and --io-thread-policy housekeeping or exclusive\n", text.Set(shared))
	}
}

// mirroredBy returns the CPUs of a cell of a VM that mirrors a host, a CPU for each vCPU.
func mirroredBy(p guest.Placement, cell guest.Cell) (cpus topology.CPUSet) {
	for _, v := range p.VCPUs {
		if cell.VCPUs.Contains(v.ID) {
			cpus = cpus.Union(v.CPUs)
		}
	}
	return cpus
}

// vcpusOf returns the CPUs of all vCPUs of a placement.
func vcpusOf(p guest.Placement) (cpus topology.CPUSet) {
	for _, v := range p.VCPUs {
		cpus = cpus.Union(v.CPUs)
	}
	return cpus
}

// specFrom reads the request: a spec file or a domain XML, changed by flags.
func specFrom(
	ctx context.Context, specFile, xmlFile string, flags *guest.FlagSpec,
) (asked guest.Spec, xml []byte, err error) {
	var file guest.SpecFile
	switch {
	case xmlFile != "":
		if xml, err = readFile(ctx, xmlFile, readXML); err != nil {
			return asked, nil, err
		}
		parsed, err := libvirt.ParseDomain(xml)
		if err != nil {
			return asked, nil, wrongFile(xmlFile, err)
		}
		asked = adopt.Spec(parsed.Guest())
	case specFile != "":
		if file, err = readFile(ctx, specFile, guest.ParseSpec); err != nil {
			return asked, nil, err
		}
		asked = file.Spec
	}
	if asked, err = flags.Apply(asked); err != nil {
		return asked, nil, usageError{err}
	}
	asked, err = asked.Normalize()
	switch {
	case err == nil:
	case specFile != "":
		err = usageError{inFile(specFile, file.Locate(err))}
	case xmlFile != "":
		err = wrongFile(xmlFile, err)
	default:
		err = usageError{err}
	}
	return asked, xml, err
}
