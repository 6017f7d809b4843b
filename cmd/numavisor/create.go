package main

import (
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
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/text"
)

func createCommand() *cobra.Command {
	var on hostFlags
	var specFile, xmlFile string
	var transient, dryRun bool
	var m libvirt.Machine
	var disks []string
	c := &cobra.Command{
		Use:                   "create --spec FILE | --xml FILE | FLAGS",
		DisableFlagsInUseLine: true,
		Short:                 "Create a VM through libvirt, bound from its first page",
		Long: `Places a VM, reserves its CPUs and memory, starts it through libvirt bound to its
placement, and verifies the result with the kernel's statistics. --xml starts an
existing domain XML, of which create changes only the binding. If a pool of huge
pages is too small, create enlarges it, and 'numavisor delete' shrinks it again.

--dry-run prints the placement, each step and the domain XML (with --xml, what
changes in it), or the error with which create would refuse. It changes nothing and
records nothing.`,
		Example: `  numavisor create --name web1 --vcpus 8 --memory 16G --disk /srv/web1.qcow2 --network default
  numavisor create --spec db.yaml --disk /srv/db.qcow2
  numavisor create --xml existing.xml --memory-binding strict --dry-run`,
		Args: takes(0, 0),
	}
	spec := guest.BindFlags(c.Flags())
	on.flags(c, withTopology, withPolicy, withRecords)
	f := c.Flags()
	f.StringVar(&specFile, "spec", "", "file with the spec, YAML or JSON ('-': standard input)")
	f.StringVar(&xmlFile, "xml", "", "file with a libvirt domain XML ('-': standard input)")
	f.BoolVar(&dryRun, "dry-run", false, "print the placement, the steps and the domain XML, and change nothing")
	f.BoolVar(&transient, "transient", false, "remove the VM from libvirt when it ends")
	machineFlags(c, &m, &disks)
	exclusive(c, "spec", "xml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := absolute(&m, disks); err != nil {
			return err
		}
		asked, xml, err := guestToMake(c, specFile, xmlFile, spec, m)
		if err != nil {
			return err
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		r := operate.CreateRequest{Spec: asked, Transient: transient, Render: renderer(xml, m)}
		on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
		if dryRun {
			would, err := h.WouldCreate(c.Context(), r)
			if err != nil {
				return err
			}
			return emit(c, would, func(w io.Writer) { printWouldCreate(w, r, would, xml) })
		}
		return createVM(c, h, r)
	}
	return c
}

// createVM creates the VM and reports what differs from the request.
func createVM(c *cobra.Command, h *local.Host, r operate.CreateRequest) error {
	closeInterrupted(c, h)
	made, err := h.Create(c.Context(), r)
	if err != nil {
		return err
	}
	if err := emit(c, made, func(w io.Writer) { printCreated(w, made) }); err != nil {
		return err
	}
	if short := made.Shortfalls(); len(short) > 0 {
		return partialError{
			fmt.Errorf("VM %s runs, but not all is as requested: %s", r.Spec.Name, strings.Join(short, "; "))}
	}
	return nil
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
	for _, note := range asked.Notes() {
		printf(c.ErrOrStderr(), "numavisor: note: %s\n", note)
	}
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
	f.StringVar(&m.Network, "network", "", "libvirt network (default: none)")
	f.StringVar(&m.Kernel, "kernel", "", "boot this Linux kernel directly")
	f.StringVar(&m.Initrd, "initrd", "", "initial file system for --kernel")
	f.StringVar(&m.Cmdline, "append", "", "command line for --kernel")
	f.StringVar(&m.SerialLog, "serial-log", "",
		"file for the output of the serial port (default: a pty, see 'virsh console')")
	f.StringVar(&m.Emulator, "emulator-path", "", "QEMU program (default: libvirt's choice)")
	f.StringVar(&m.Type, "hypervisor-type", "", "kvm (default) or qemu (software emulation)")
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

// printWouldCreate prints the placement, the steps in their order, and the domain
// XML, or its difference to the given one.
func printWouldCreate(w io.Writer, r operate.CreateRequest, p operate.CreatePlan, given []byte) {
	printPlaced(w, p.Placement, p.Why, false)
	steps := []string{fmt.Sprintf("reserve %s and %v on nodes %s", text.Count(r.Spec.VCPUs, "vCPU", "vCPUs"),
		r.Spec.Memory, p.Placement.Nodes)}
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
