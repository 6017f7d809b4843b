package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/text"
)

// listRemote lists the VMs of a fleet.
func listRemote(c *cobra.Command, client *fleetapi.Client, names []string) error {
	defer client.Close()
	vms, err := client.VMs(c.Context(), fleetapi.Filter{})
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(vms, func(v fleetapi.VM) bool { return v.Name == name }) {
			return fmt.Errorf("VM %s is not in the fleet, or in none of your projects; 'numavisor list' shows all",
				name)
		}
	}
	if len(names) > 0 {
		vms = slices.DeleteFunc(vms, func(v fleetapi.VM) bool { return !slices.Contains(names, v.Name) })
	}
	return emit(c, fleetapi.VMs{VMs: vms}, func(w io.Writer) { printVMs(w, vms) })
}

func printVMs(w io.Writer, vms []fleetapi.VM) {
	if len(vms) == 0 {
		fmt.Fprintln(w, "no VMs")
		return
	}
	rows := [][]string{{"VM", "PROJECT", "HOST", "STATE", "VCPUS", "MEMORY", "PLACED ON", "MESSAGE"}}
	for i := range vms {
		v := &vms[i]
		placed := "-"
		if !v.Placement.Nodes.IsEmpty() {
			placed = "nodes " + v.Placement.Nodes.String()
			if v.Placement.Nodes.Len() == 1 {
				placed = "node " + v.Placement.Nodes.String()
			}
		}
		rows = append(rows, []string{v.Name, v.Project, cmp.Or(v.Host, "-"), string(v.State), fmt.Sprint(v.Spec.VCPUs),
			v.Spec.Memory.String(), placed, text.FirstClause(cmp.Or(messageOf(v), "-"))})
	}
	columns(w, rows)
}

// messageOf says what is wrong with a VM of a fleet.
func messageOf(v *fleetapi.VM) string {
	if v.Status != nil && v.Status.Message != "" {
		return v.Status.Message
	}
	return cmp.Or(v.Pending, v.Stays)
}

// showRemote shows a VM of a fleet, and why it is where it is.
func showRemote(c *cobra.Command, client *fleetapi.Client, name string) error {
	defer client.Close()
	vm, err := client.VM(c.Context(), name)
	if err != nil {
		return err
	}
	return emit(c, vm, func(w io.Writer) { printVM(w, &vm) })
}

func printVM(w io.Writer, v *fleetapi.VM) {
	printVMs(w, []fleetapi.VM{*v})
	if len(v.Placement.Cells) > 0 {
		fmt.Fprintln(w)
		rows := [][]string{{"CELL", "VCPUS", "MEMORY", "NODES"}}
		for _, cell := range v.Placement.Cells {
			rows = append(rows, []string{fmt.Sprint(cell.ID), text.Set(cell.VCPUs), cell.Memory.String(),
				text.Set(cell.Nodes)})
		}
		columns(w, rows)
	}
	if v.Why != nil {
		printf(w, "\nwhy: %s\n", v.Why.Summary)
		fmt.Fprint(w, text.VisibleLines(v.Why.Text))
	}
	if m := v.Migration; m != nil {
		printf(w, "migrates to %s since %s: %s%s\n", m.To, moment(m.Began), m.Why, optionsText(m.Options))
	}
	if message := messageOf(v); message != "" && (v.Why == nil || v.Why.Summary != message) {
		printf(w, "message: %s\n", message)
	}
}

// optionsText describes the options of a migration, for the end of a line.
func optionsText(o fleet.MigrationOptions) string {
	if o == (fleet.MigrationOptions{}) {
		return ""
	}
	return " (" + o.String() + ")"
}

// machineOf returns the machine of a new VM of a fleet. Paths are those of its host.
func machineOf(m libvirt.Machine, disks []string) (fleet.Machine, error) {
	out := fleet.Machine{Type: m.Type, UEFI: m.UEFI, Kernel: m.Kernel, Initrd: m.Initrd, Cmdline: m.Cmdline,
		Network: m.Network, SerialLog: m.SerialLog}
	for _, path := range append(slices.Clone(disks), m.Kernel, m.Initrd, m.SerialLog) {
		if path != "" && !filepath.IsAbs(path) {
			return out, wrongUse("path %q: give an absolute path of the host on which the VM will run", path)
		}
	}
	for _, d := range disks {
		out.Disks = append(out.Disks, fleet.Disk{Path: d})
	}
	return out, nil
}

// remoteCreateFlags are the flags of create that a fleet knows.
func remoteCreateFlags() []string {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	guest.BindFlags(f)
	names := []string{"spec", "dry-run", "project", "timeout", "disk", "network", "kernel", "initrd", "append",
		"serial-log", "hypervisor-type", "uefi"}
	f.VisitAll(func(x *pflag.Flag) { names = append(names, x.Name) })
	return names
}

// createRemote asks for a VM of a fleet, and waits until it runs.
func createRemote(
	c *cobra.Command, client *fleetapi.Client, spec *guest.FlagSpec, how *createFlags, limit time.Duration,
) error {
	defer client.Close()
	asked, _, err := specFrom(c.Context(), how.specFile, "", spec)
	if err != nil {
		return err
	}
	if asked.Name == "" {
		return wrongUse("a VM needs a name: give --name, or name in the spec")
	}
	machine, err := machineOf(how.machine, how.disks)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	vm, err := client.CreateVM(ctx, fleetapi.VMCreate{Project: how.project, Spec: asked, Machine: machine},
		fleetapi.Change{DryRun: how.dryRun, Key: rand.Text()})
	if err == nil && !how.dryRun {
		vm, err = awaitVM(ctx, client, asked.Name, settledVM)
	}
	if err != nil {
		return err
	}
	if err := emit(c, vm, func(w io.Writer) { printVM(w, &vm) }); err != nil || how.dryRun {
		return err
	}
	if vm.State != fleetapi.VMRunning {
		return partialError{fmt.Errorf("VM %s is %s: %s", vm.Name, vm.State,
			cmp.Or(messageOf(&vm), "no reason is known"))}
	}
	return nil
}

// settledVM says whether the fleet and the host have done what they can for now.
func settledVM(v *fleetapi.VM) bool {
	switch v.State {
	case fleetapi.VMWorking, fleetapi.VMDeleting, fleetapi.VMMigrating:
		return false
	case fleetapi.VMPending, fleetapi.VMRunning, fleetapi.VMStopped, fleetapi.VMFailed, fleetapi.VMUnknown:
	}
	return v.Status == nil || v.Status.Generation >= v.Generation || v.State == fleetapi.VMPending
}

// changeRemote makes a change of a VM of a fleet, and prints the VM once it has settled.
func changeRemote(
	c *cobra.Command, client *fleetapi.Client, name string, how fleetapi.Change, limit time.Duration,
	change func(context.Context, fleetapi.Change) (fleetapi.VM, error),
) error {
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	vm, err := change(ctx, how)
	if err == nil && !how.DryRun {
		vm, err = awaitVM(ctx, client, name, settledVM)
	}
	if err != nil {
		return err
	}
	if err := emit(c, vm, func(w io.Writer) { printVM(w, &vm) }); err != nil || how.DryRun {
		return err
	}
	if vm.State == fleetapi.VMFailed || vm.State == fleetapi.VMPending {
		return partialError{fmt.Errorf("VM %s is %s: %s", name, vm.State, cmp.Or(messageOf(&vm), "no reason is known"))}
	}
	return nil
}

// bindRemote lets the fleet choose the nodes of a VM again, on its host.
func bindRemote(c *cobra.Command, client *fleetapi.Client, name string, dryRun bool, limit time.Duration) error {
	return changeRemote(c, client, name, fleetapi.Change{DryRun: dryRun}, limit,
		func(ctx context.Context, how fleetapi.Change) (fleetapi.VM, error) {
			return client.BindVM(ctx, name, how)
		})
}

// deleteRemote deletes a VM of a fleet, and waits until it is gone.
func deleteRemote(c *cobra.Command, client *fleetapi.Client, name string, dryRun bool, limit time.Duration) error {
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	vm, err := client.DeleteVM(ctx, name, fleetapi.Change{DryRun: dryRun})
	if err != nil {
		return err
	}
	if dryRun {
		what := fmt.Sprintf("delete %s from host %s and from the fleet", name, cmp.Or(vm.Host, "-"))
		return emit(c, map[string]string{"would": what}, func(w io.Writer) { printf(w, "would %s\n", what) })
	}
	vm, err = awaitVM(ctx, client, name, func(v *fleetapi.VM) bool { return v.State == fleetapi.VMFailed })
	if p := (*fleetapi.Problem)(nil); errors.As(err, &p) && p.Type == fleetapi.ProblemNotFound {
		return emit(c, map[string]string{"deleted": name}, func(w io.Writer) { printf(w, "%s: deleted\n", name) })
	}
	if err == nil {
		err = fmt.Errorf("VM %s is not deleted: %s; its host tries again", name, messageOf(&vm))
	}
	return err
}

// vmCommand is a command that changes one VM of a fleet. The flags are those that the command has of its own.
func vmCommand(
	use, short, long string,
	change func(context.Context, *fleetapi.Client, string, fleetapi.Change) (fleetapi.VM, error), flags ...string,
) *cobra.Command {
	var on remote
	var dryRun bool
	var limit time.Duration
	c := &cobra.Command{
		Use: use + " VM", Short: short, Long: long, Args: takes(1, 1),
		Example: "  numavisor " + use + " web1",
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := on.fleet(c, append(flags, "dry-run", "timeout")...)
		if err != nil {
			return err
		}
		return changeRemote(c, client, args[0], fleetapi.Change{DryRun: dryRun}, limit,
			func(ctx context.Context, how fleetapi.Change) (fleetapi.VM, error) {
				return change(ctx, client, args[0], how)
			})
	}
	on.flag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would happen, and change nothing")
	timeLimitFlag(c.Flags(), &limit, "give up waiting after this time; the fleet goes on")
	return c
}

func startCommand() *cobra.Command {
	return vmCommand("start", "Start a VM of a fleet",
		`Starts a VM of a fleet on the host and nodes that are reserved for it, and waits until
it runs, bound and verified.`,
		func(ctx context.Context, client *fleetapi.Client, name string, how fleetapi.Change) (fleetapi.VM, error) {
			return client.StartVM(ctx, name, how)
		})
}

func stopCommand() *cobra.Command {
	return vmCommand("stop", "Stop a VM of a fleet; its room stays reserved",
		`Asks a VM of a fleet to power off, and ends it if it does not within 30 seconds. The
VM keeps its host, its nodes and its room.`,
		func(ctx context.Context, client *fleetapi.Client, name string, how fleetapi.Change) (fleetapi.VM, error) {
			return client.StopVM(ctx, name, how)
		})
}

func resizeCommand() *cobra.Command {
	var size fleetapi.VMResize
	var memory string
	c := vmCommand("resize", "Change the vCPUs or the memory of a VM of a fleet that does not run",
		`Changes the size of a VM of a fleet that does not run. The fleet chooses its nodes again,
on its host; if it does not fit there, nothing changes. What has no flag stays as it is.`,
		func(ctx context.Context, client *fleetapi.Client, name string, how fleetapi.Change) (fleetapi.VM, error) {
			amount, err := sizeOf(memory)
			switch {
			case err != nil:
				return fleetapi.VM{}, wrongUse("--memory %q: %w", memory, err)
			case size.VCPUs < 0:
				return fleetapi.VM{}, wrongUse("--vcpus %d: allowed are 1 and more", size.VCPUs)
			case size.VCPUs == 0 && amount == 0:
				return fleetapi.VM{}, wrongUse("resize needs --vcpus or --memory")
			}
			size.Memory = amount
			return client.ResizeVM(ctx, name, size, how)
		}, "vcpus", "memory")
	c.Flags().IntVar(&size.VCPUs, "vcpus", 0, "number of vCPUs (default: as before)")
	c.Flags().StringVar(&memory, "memory", "", "memory, for example 8G (default: as before)")
	c.Example = "  numavisor resize web1 --vcpus 8 --memory 16G"
	return c
}

// migrationFlags are the flags that say how VMs migrate.
type migrationFlags struct {
	chosen  fleet.MigrationOptions
	longest time.Duration
}

func (f *migrationFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&f.longest, "max-downtime", 0, "longest stop of a VM (default: the hypervisor's)")
	flags.BoolVar(&f.chosen.PostCopy, "post-copy", false,
		"let a VM run on the target before all of its memory is there; a broken connection then loses the VM")
	flags.BoolVar(&f.chosen.CopyStorage, "copy-storage", false, "copy the disks that the target does not share")
}

// options returns what the flags ask for. Values that no host carries out are a usage error.
func (f *migrationFlags) options() (fleet.MigrationOptions, error) {
	if f.longest != 0 && (f.longest < time.Millisecond || f.longest%time.Millisecond != 0) {
		return f.chosen, wrongUse("--max-downtime: %v: allowed are whole milliseconds, such as 50ms", f.longest)
	}
	f.chosen.MaxDowntime = int(f.longest / time.Millisecond)
	if err := f.chosen.Validate(); err != nil {
		return f.chosen, wrongUse("%w", err)
	}
	return f.chosen, nil
}
