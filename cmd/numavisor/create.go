package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/text"
)

func createCommand() *cobra.Command {
	var on hostFlags
	var how createFlags
	var in remote
	c := &cobra.Command{
		Use:                   "create --spec FILE | --xml FILE | --xl FILE | FLAGS",
		DisableFlagsInUseLine: true,
		Short:                 "Create a VM through libvirt or xl, bound from its first page",
		Long: `Places a VM, reserves its CPUs and memory, starts it through libvirt bound to its
placement, and verifies the result with the kernel's statistics. --xml starts an
existing domain XML, of which create changes only the binding. If a pool of huge
pages is too small, create enlarges it, and 'numavisor delete' shrinks it again.

On a Xen host, --xl creates a VM from an xl configuration, of which create changes only
cpus, cpus_soft and the nodes and distances of vnuma; the rest, comments included, stays
as it is. CPUs and the pool that it names limit the choice. --topology and --cells give
an HVM VM virtual NUMA nodes (vnuma); without them it sees none.

If the VM does not fit, the error names the moves of other VMs that would make room
for it. --make-room makes them first: it reserves the room, moves the VMs as 'apply'
does, and starts the new one. If a move or the start fails, or the command is
interrupted, it moves the VMs back. VMs whose balancing mode is off do not move.

--dry-run prints the placement, each step and the domain XML (with --xml, what
changes in it), or the error with which create would refuse. It changes nothing and
records nothing.`,
		Example: `  numavisor create --name web1 --vcpus 8 --memory 16G --disk /srv/web1.qcow2 --network default
  numavisor create --spec db.yaml --disk /srv/db.qcow2
  numavisor create --xml existing.xml --memory-binding strict --dry-run
  numavisor create --spec db.yaml --disk /srv/db.qcow2 --make-room --dry-run
  numavisor create --xl /etc/xen/web1.cfg --dry-run
  numavisor create --xl /etc/xen/db.cfg --topology auto`,
		Args: takes(0, 0),
	}
	spec := guest.BindFlags(c.Flags())
	on.flags(c, withTopology, withPolicy, withRecords)
	how.define(c)
	in.flag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := in.client(c, remoteCreateFlags()...)
		if err != nil {
			return err
		}
		if client != nil {
			return createRemote(c, client, spec, &how, on.timeout)
		}
		if how.xlFile != "" {
			return createOnXen(c, &on, &how, spec)
		}
		return createHere(c, &on, &how, spec)
	}
	return c
}

// createHere creates a VM on this host.
func createHere(c *cobra.Command, on *hostFlags, how *createFlags, spec *guest.FlagSpec) error {
	if err := errors.Join(absolute(&how.machine, how.disks), onlyWith(c, "make-room", "full-speed"),
		onlyWith(c, "server", "project")); err != nil {
		return err
	}
	if how.makeRoom && !c.Flags().Changed("timeout") {
		on.timeout = applyTime
	}
	asked, xml, err := guestToMake(c, how.specFile, how.xmlFile, spec, how.machine)
	if err != nil {
		return err
	}
	h, done, err := on.open(c)
	if err != nil {
		return err
	}
	defer done()
	if err := checkHypervisor(h.Xen); err != nil {
		return err
	}
	r := operate.CreateRequest{Spec: asked, Transient: how.transient, Render: renderer(xml, how.machine),
		MakeRoom: how.makeRoom}
	on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
	if how.dryRun {
		would, err := h.WouldCreate(c.Context(), r)
		if err != nil {
			return err
		}
		return emit(c, would, func(w io.Writer) { printWouldCreate(w, r, would, xml) })
	}
	return createVM(c, h, r, how.fullSpeed)
}

// createFlags are the flags of create, in addition to those of the spec.
type createFlags struct {
	specFile, xmlFile, xlFile              string
	transient, dryRun, makeRoom, fullSpeed bool
	machine                                libvirt.Machine
	disks                                  []string
	project                                string // of a fleet
}

func (x *createFlags) define(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&x.specFile, "spec", "", "file with the spec, YAML or JSON ('-': standard input)")
	f.StringVar(&x.xmlFile, "xml", "", "file with a libvirt domain XML ('-': standard input)")
	f.StringVar(&x.xlFile, "xl", "", "on a Xen host: file with an xl configuration ('-': standard input)")
	f.BoolVar(&x.dryRun, "dry-run", false, "print the placement, the steps and the domain XML, and change nothing")
	f.BoolVar(&x.transient, "transient", false, "remove the VM from libvirt when it ends")
	f.BoolVar(&x.makeRoom, "make-room", false, "if the VM does not fit, move other VMs first")
	f.BoolVar(&x.fullSpeed, "full-speed", false,
		"with --make-room: do not limit the copy rate, even if VMs slow down")
	f.StringVar(&x.project, "project", "", "with --server: project of the VM (default: your only one)")
	machineFlags(c, &x.machine, &x.disks)
	exclusive(c, "spec", "xml")
	for _, name := range notWithXL() {
		if c.Flags().Lookup(name) != nil {
			exclusive(c, "xl", name)
		}
	}
}

// createVM creates the VM and reports what differs from the request.
func createVM(c *cobra.Command, h *local.Host, r operate.CreateRequest, fullSpeed bool) error {
	closeInterrupted(c, h)
	var all created
	var err error
	if r.MakeRoom {
		how := move.Request{FullSpeed: fullSpeed, Progress: progressOn(c.ErrOrStderr()).moving()}
		all.Created, all.Moves, err = h.CreateMakingRoom(c.Context(), r, how)
	} else {
		all.Created, err = h.Create(c.Context(), r)
	}
	if err != nil {
		if len(all.Moves) > 0 {
			printRoomMoves(c.ErrOrStderr(), all.Moves)
		}
		return err
	}
	made := &all.Created
	if err := emit(c, all, func(w io.Writer) { printRoomMoves(w, all.Moves); printCreated(w, *made) }); err != nil {
		return err
	}
	if short := made.Shortfalls(); len(short) > 0 {
		return partialError{
			fmt.Errorf("VM %s runs, but not all is as requested: %s", r.Spec.Name, strings.Join(short, "; "))}
	}
	return nil
}

// created is what create prints.
type created struct {
	operate.Created
	Moves []move.RoomMove `json:"moves,omitempty"` // that made room
}

// printRoomMoves prints the moves that made room, each with its end.
func printRoomMoves(w io.Writer, moves []move.RoomMove) {
	for i := range moves {
		m := &moves[i]
		end := string(m.End)
		switch {
		case m.Back != nil && m.Back.Moved != nil && m.Back.Moved.End == journal.MoveUndone:
			end = "moved back"
		case end == "":
			end = "interrupted"
		}
		printf(w, "%s: %s; %v copied in %.1f s\n", m.Move, end, m.Bytes, m.Took.Seconds())
	}
}

// guestToMake reads the spec and refuses a guest that cannot be created, before
// the command claims room for it.
func guestToMake(
	c *cobra.Command, specFile, xmlFile string, spec *guest.FlagSpec, m libvirt.Machine,
) (guest.Spec, []byte, error) {
	asked, xml, err := specFrom(c.Context(), specFile, xmlFile, spec)
	if err != nil {
		return asked, nil, err
	}
	printNotes(c, &asked)
	if asked.Name == "" {
		return asked, nil, wrongUse("a VM needs a name: give --name, or name in the spec")
	}
	if xml == nil {
		if err := m.Check(asked); err != nil {
			return asked, nil, usageError{err}
		}
	}
	return asked, xml, nil
}

// machineFlags defines the flags for what a new guest needs in addition to its
// spec. A domain XML contains it already.
func machineFlags(c *cobra.Command, m *libvirt.Machine, disks *[]string) {
	f := c.Flags()
	f.StringArrayVar(disks, "disk", nil, "disk image or block device; may be repeated")
	f.StringVar(&m.Network, "network", "", "libvirt network, or bridge of a Xen host (default: none)")
	f.StringVar(&m.Kernel, "kernel", "", "boot this Linux kernel directly")
	f.StringVar(&m.Initrd, "initrd", "", "initial file system for --kernel")
	f.StringVar(&m.Cmdline, "append", "", "command line for --kernel")
	f.StringVar(&m.SerialLog, "serial-log", "",
		"file for the output of the serial port (default: a pty, see 'virsh console')")
	f.StringVar(&m.Emulator, "emulator-path", "", "QEMU program (default: libvirt's choice)")
	f.StringVar(&m.Type, "hypervisor-type", "", "kvm (default) or qemu (software emulation); in a fleet also xen")
	f.BoolVar(&m.UEFI, "uefi", false, "boot with UEFI firmware")
	for _, name := range []string{"disk", "network", "kernel", "initrd", "append", "serial-log", "emulator-path",
		"hypervisor-type", "uefi"} {
		exclusive(c, "xml", name)
	}
}

// absolute adds the disks to the machine, and resolves each relative path from
// the present folder: libvirt's daemon has another one.
func absolute(m *libvirt.Machine, disks []string) error {
	for _, d := range disks {
		m.Disks = append(m.Disks, libvirt.Disk{Path: d})
	}
	paths := []*string{&m.Kernel, &m.Initrd, &m.SerialLog, &m.Emulator}
	for i := range m.Disks {
		paths = append(paths, &m.Disks[i].Path)
	}
	for _, p := range paths {
		if *p == "" || filepath.IsAbs(*p) {
			continue
		}
		whole, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = whole
	}
	return nil
}

// renderer makes a new domain XML, or rewrites the binding of a given one.
func renderer(xml []byte, m libvirt.Machine) operate.Renderer {
	return func(i guest.Intent) (operate.Rendered, error) {
		var r operate.Rendered
		var bound []byte
		var err error
		if xml != nil {
			bound, err = libvirt.Rewrite(xml, i.Placement, i)
		} else {
			bound, err = libvirt.DomainXML(i, m)
		}
		if err == nil {
			r.Definition, r.Cannot, err = libvirt.Definition(bound)
		}
		return r, err
	}
}

func printCreated(w io.Writer, c operate.Created) {
	printf(w, "%s\n", c.Why.Summary)
	for _, r := range c.Cannot {
		printf(w, "note: %s: %s\n", r.What, r.Why)
	}
	printTruth(w, nil, &c.Truth)
}

// reserved counts the vCPUs for which a placement reserves CPUs.
func reserved(s guest.Spec, p guest.Placement) int {
	if p.Handoff != nil {
		return p.Handoff.Min
	}
	return s.VCPUs
}

// printWouldCreate prints the placement, the steps in their order, and the domain
// XML, or its difference to the given one.
func printWouldCreate(w io.Writer, r operate.CreateRequest, p operate.CreatePlan, given []byte) {
	printPlaced(w, p.Placement, p.Why, false)
	steps := []string{fmt.Sprintf("reserve %s and %v on nodes %s",
		text.Count(reserved(r.Spec, p.Placement), "vCPU", "vCPUs"), r.Spec.Memory, p.Placement.Nodes)}
	if p.MakeRoom != nil {
		steps = append(steps, p.MakeRoom.Lines()...)
	}
	for _, s := range p.Pools {
		steps = append(steps, s.String())
	}
	start := "define VM %s in libvirt and start it"
	if r.Transient {
		start = "start VM %s in libvirt without a stored configuration"
	}
	steps = append(steps, fmt.Sprintf(start, r.Spec.Name), "read its nodes and pins back from the kernel")
	printf(w, "\nWould do:\n")
	for i, s := range steps {
		printf(w, "%3d. %s\n", i+1, s)
	}
	for _, c := range p.Cannot {
		printf(w, "note: %s: %s\n", c.What, c.Why)
	}
	if given != nil {
		fmt.Fprintf(w, "\n%s", diff.Diff("given XML", given, "XML of "+text.Visible(r.Spec.Name), []byte(p.XML)))
		return
	}
	fmt.Fprintf(w, "\n%s\n", strings.TrimRight(p.XML, "\n"))
}
