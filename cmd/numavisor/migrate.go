package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
)

const migrateLong = `With a fleet: migrates a VM to another host while it runs, and waits for the end. Its
room on the target, with NUMA nodes and CPUs, is reserved before anything is copied.

On a Xen host without a fleet, --to names the target, and xl migrates the VM: Numavisor
reads what the target has ('numavisor capture' there, over the transport), chooses nodes
and CPUs, computes the configuration, runs 'xl migrate', records the placement there and
verifies it. The VM gets no more nodes than it has now. VMs with virtual NUMA nodes or an
assigned device are refused, since Xen cannot migrate them. If the migration fails, the
VM continues to run here. Ctrl-C does not stop a migration that has begun.`

// migration holds the flags of migrate.
type migration struct {
	fleetapi.VMMigrate
	options migrationFlags
	dryRun  bool
	// without a fleet
	on                           hostFlags
	transport, inventory, xlFile string
}

func migrateCommand() *cobra.Command {
	var in remote
	var m migration
	c := &cobra.Command{
		Use: "migrate VM", Short: "Migrate a running VM to another host", Long: migrateLong, Args: takes(1, 1),
		Example: `  numavisor migrate web1 --dry-run
  numavisor migrate web1 --to host7
  numavisor migrate web1 --max-downtime 50ms
  numavisor migrate web1 --copy-storage   # its disks are on its host alone
  numavisor migrate web1 --to root@xen2 --transport "ssh -p 2222"   # Xen, without a fleet`,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := in.client(c, "dry-run", "timeout", "to", "why", "max-downtime", "post-copy", "copy-storage")
		if err != nil {
			return err
		}
		if client == nil {
			return m.alone(c, args[0])
		}
		if m.MigrationOptions, err = m.options.options(); err != nil {
			return err
		}
		return changeRemote(c, client, args[0], fleetapi.Change{DryRun: m.dryRun}, m.on.timeout,
			func(ctx context.Context, how fleetapi.Change) (fleetapi.VM, error) {
				return client.MigrateVM(ctx, args[0], m.VMMigrate, how)
			})
	}
	in.flag(c)
	m.on.flags(c, withPolicy, withRecords)
	f := c.Flags()
	f.BoolVar(&m.dryRun, "dry-run", false, "show what would happen, and change nothing")
	f.StringVar(&m.To, "to", "", "target host (default: the best one of the fleet)")
	f.StringVar(&m.Why, "why", "", "reason, for the audit")
	m.options.add(f)
	f.StringVar(&m.transport, "transport", xen.SSH,
		"Xen without a fleet: command that runs what follows the target's name on the target")
	f.StringVar(&m.inventory, "inventory", "",
		"Xen without a fleet: file with what 'numavisor capture' wrote on the target (default: the target is asked)")
	f.StringVar(&m.xlFile, "xl", "", "Xen without a fleet: the VM's xl configuration (default: computed)")
	return c
}

// alone migrates a VM of a Xen host without a fleet.
func (m *migration) alone(c *cobra.Command, name string) error {
	for _, flag := range []string{"max-downtime", "post-copy", "copy-storage"} {
		if c.Flags().Changed(flag) {
			return wrongUse("--%s: xl migrate cannot do that; only migrations in a fleet can", flag)
		}
	}
	if m.To == "" {
		return wrongUse("migrate acts on a fleet, or from a Xen host to another one: name the fleet's server with "+
			"--server, %s or a current context, or the other Xen host with --to", serverVariable)
	}
	definition, err := xlDefinition(c, m.xlFile)
	if err != nil {
		return err
	}
	h, done, err := m.on.open(c)
	if err != nil {
		return err
	}
	defer done()
	if h.Xen == nil {
		return wrongUse("migrate --to %s: this is no Xen host, and no fleet is named; VMs of libvirt migrate in a "+
			"fleet: name its server with --server", m.To)
	}
	direct, err := h.Xen.Route(m.To, m.transport)
	if err != nil {
		return usageError{err}
	}
	route := operate.Route(direct)
	if m.inventory != "" {
		given, err := readFile(c.Context(), m.inventory, inventory.Parse)
		if err == nil {
			err = xen.CheckTarget(&given)
		}
		if err != nil {
			return err
		}
		route = givenTarget{direct, given}
	}
	if !m.dryRun {
		closeInterrupted(c, h)
	}
	m.on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
	done2, err := h.Migrate(c.Context(), operate.MigrateRequest{Name: name, To: m.To, Route: route,
		Definition: definition, DryRun: m.dryRun, Why: m.Why})
	return reportMigrated(c, name, &done2, m.dryRun, err)
}

// givenTarget is a target of which the operator gives the inventory.
type givenTarget struct {
	*xen.Route

	inventory inventory.Host
}

// Inventory implements operate.Route.
func (g givenTarget) Inventory(context.Context) (inventory.Host, error) { return g.inventory, nil }

// xlDefinition reads the xl configuration in a file of the operator. Without a path it returns nil.
func xlDefinition(c *cobra.Command, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := readFile(c.Context(), path, io.ReadAll)
	if err != nil {
		return nil, err
	}
	if _, err := xen.ParseConfig(text); err != nil {
		return nil, wrongFile(path, err)
	}
	return text, nil
}

// reportMigrated prints a migration without a fleet, also one that would be made.
func reportMigrated(c *cobra.Command, name string, m *operate.Migrated, dryRun bool, err error) error {
	if err != nil && m.Truth == nil {
		return err
	}
	if printed := emit(c, m, func(w io.Writer) { printMigrated(w, name, m, dryRun) }); printed != nil {
		return errors.Join(printed, err)
	}
	short := m.Shortfalls()
	switch {
	case err != nil:
		return partialError{fmt.Errorf("VM %s runs on %s, but: %w", name, m.To, err)}
	case len(short) > 0:
		return partialError{fmt.Errorf("VM %s runs on %s, but not all is as decided: %s", name, m.To,
			strings.Join(short, "; "))}
	}
	return nil
}

func printMigrated(w io.Writer, name string, m *operate.Migrated, dryRun bool) {
	printPlaced(w, m.Placement, m.Why, false)
	for _, note := range m.Notes {
		printf(w, "note: %s\n", note)
	}
	if dryRun {
		printf(w, "\nWould do:\n  1. run 'xl migrate' of VM %s to %s, bound to the CPUs above\n"+
			"  2. record the placement there\n  3. read its affinities and the nodes of its memory there\n", name, m.To)
		return
	}
	printf(w, "%s migrated to %s\n", name, m.To)
	printTruth(w, m.Before, m.Truth)
}
