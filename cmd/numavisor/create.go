package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/operate"
)

func createCommand() *cobra.Command {
	var on hostFlags
	var specFile, xmlFile string
	var transient bool
	var m libvirt.Machine
	var disks []string
	c := &cobra.Command{
		Use:                   "create --spec FILE | --xml FILE | FLAGS",
		DisableFlagsInUseLine: true,
		Short:                 "Create a VM through libvirt, bound from its first page",
		Long: `Places a VM, reserves its CPUs and memory, starts it through libvirt bound to its
placement, and verifies the result with the kernel's statistics. --xml starts an
existing domain XML, of which create changes only the binding. If a pool of huge
pages is too small, create enlarges it, and 'numavisor delete' shrinks it again.`,
		Example: `  numavisor create --name web1 --vcpus 8 --memory 16G --disk /srv/web1.qcow2 --network default
  numavisor create --spec db.yaml --disk /srv/db.qcow2
  numavisor create --xml existing.xml --memory-binding strict`,
		Args: cobra.NoArgs,
	}
	spec := guest.BindFlags(c.Flags())
	on.flags(c, withTopology, withPolicy, withRecords)
	f := c.Flags()
	f.StringVar(&specFile, "spec", "", "file with the spec, YAML or JSON ('-': standard input)")
	f.StringVar(&xmlFile, "xml", "", "file with a libvirt domain XML ('-': standard input)")
	f.BoolVar(&transient, "transient", false, "remove the VM from libvirt when it ends")
	machineFlags(c, &m, &disks)
	exclusive(c, "spec", "xml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		for _, d := range disks {
			m.Disks = append(m.Disks, libvirt.Disk{Path: d})
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
		closeInterrupted(c, h)
		made, err := h.Create(c.Context(),
			operate.CreateRequest{Spec: asked, Transient: transient, Render: renderer(xml, m)})
		if err != nil {
			return err
		}
		if err := emit(c, made, func(w io.Writer) { printCreated(w, made) }); err != nil {
			return err
		}
		if short := made.Shortfalls(); len(short) > 0 {
			return partialError{
				fmt.Errorf("VM %s runs, but not all is as requested: %s", asked.Name, strings.Join(short, "; "))}
		}
		return nil
	}
	return c
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
	f.StringArrayVar(disks, "disk", nil, "disk image or block device, by its absolute path; may be repeated")
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

// renderer makes a new domain XML, or rewrites the binding of a given one.
func renderer(xml []byte, m libvirt.Machine) operate.Renderer {
	return func(i guest.Intent) (operate.Rendered, error) {
		var r operate.Rendered
		var err error
		if xml != nil {
			r.XML, err = libvirt.Rewrite(xml, i.Placement, i)
		} else {
			r.XML, err = libvirt.DomainXML(i, m)
		}
		if err != nil {
			return r, err
		}
		parsed, err := libvirt.ParseDomain(r.XML)
		if err == nil {
			r.Cannot = libvirt.Cannot(parsed, i.Placement)
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
