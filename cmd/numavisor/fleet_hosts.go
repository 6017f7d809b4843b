package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/text"
)

func hostsCommand() *cobra.Command {
	var on remote
	c := &cobra.Command{
		Use:   "hosts",
		Short: "List the hosts of a fleet with their free room and alarms",
		Long: `Lists the hosts of a fleet: whether the server hears from them, whether they get new
VMs, their nodes, CPUs and memory, the memory that no VM holds, and lasting alarms.`,
		Example: "  numavisor hosts --server https://fleet.example.org:8443",
		Args:    takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := on.fleet(c)
			if err != nil {
				return err
			}
			defer client.Close()
			hosts, err := client.Hosts(c.Context())
			if err != nil {
				return err
			}
			return emit(c, fleetapi.Hosts{Hosts: hosts}, func(w io.Writer) { printHosts(w, hosts) })
		},
	}
	on.flag(c)
	return c
}

func printHosts(w io.Writer, hosts []fleetapi.Host) {
	if len(hosts) == 0 {
		fmt.Fprintln(w, "no host has joined")
		return
	}
	rows := [][]string{{"HOST", "RACK", "STATE", "NEW VMS", "NODES", "CPUS", "MEMORY", "LEFT", "VMS", "ALARMS"}}
	for i := range hosts {
		h := &hosts[i]
		gets := "yes"
		switch {
		case h.Draining:
			gets = "no: draining"
		case h.Cordoned:
			gets = "no: cordoned"
		}
		alarms := 0
		for _, n := range h.Alarms {
			alarms += n
		}
		rows = append(rows, []string{h.Name, cmp.Or(h.Rack, "-"), string(h.State), gets, fmt.Sprint(h.Nodes),
			fmt.Sprint(h.CPUs), h.Memory.String(), h.Left.String(), fmt.Sprint(h.VMs), fmt.Sprint(alarms)})
	}
	columns(w, rows)
}

func hostCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "host",
		Short: "Drain, cordon or uncordon a host of a fleet",
		Long:  "Decides whether a host of a fleet gets new VMs, and whether its VMs leave it.",
		Args:  knownCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		oneHostCommand("cordon", "Put no new VMs on a host; its VMs stay", (*fleetapi.Client).Cordon),
		oneHostCommand("uncordon", "Put VMs on a host again, and end its draining", (*fleetapi.Client).Uncordon),
		drainCommand(),
	)
	return c
}

func drainCommand() *cobra.Command {
	var how migrationFlags
	c := oneHostCommand("drain", "Migrate all VMs of a host to other hosts",
		func(client *fleetapi.Client, ctx context.Context, name string) (h fleetapi.Host, err error) {
			options, err := how.options()
			if err != nil {
				return h, err
			}
			return client.Drain(ctx, name, options)
		})
	c.Long = `Migrates all running VMs of a host to other hosts, two at a time, and puts no new VMs on
it. The command returns at once; 'numavisor list' says why a VM stays.`
	c.Example += "\n  numavisor host drain host7 --copy-storage   # disks are on the host alone"
	how.add(c.Flags())
	return c
}

// oneHostCommand is a command that changes one host of a fleet.
func oneHostCommand(
	use, short string, change func(*fleetapi.Client, context.Context, string) (fleetapi.Host, error),
) *cobra.Command {
	var on remote
	c := &cobra.Command{
		Use: use + " HOST", Short: short, Long: short + ".", Args: takes(1, 1),
		Example: "  numavisor host " + use + " host7",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := on.fleet(c)
			if err != nil {
				return err
			}
			defer client.Close()
			h, err := change(client, c.Context(), args[0])
			if err != nil {
				return err
			}
			return emit(c, h, func(w io.Writer) { printHosts(w, []fleetapi.Host{h}) })
		},
	}
	on.flag(c)
	return c
}

// alarmsRemote lists the alarms of a fleet's hosts.
func alarmsRemote(c *cobra.Command, client *fleetapi.Client) error {
	defer client.Close()
	list, err := client.Alarms(c.Context())
	if err != nil {
		return err
	}
	return emit(c, list, func(w io.Writer) {
		if len(list.Alarms) == 0 {
			fmt.Fprintln(w, "no alarms")
			return
		}
		if len(list.Lasting) > 0 {
			rows := [][]string{{"HOST", "SEVERITY", "QUANTITY", "OBJECT", "WORST", "SINCE", "VMS", "WHY"}}
			for i := range list.Lasting {
				a := &list.Lasting[i]
				rows = append(rows, []string{a.Host, string(a.Severity), string(a.Quantity), a.Object,
					a.Quantity.Amount(a.Worst), moment(a.Since), cmp.Or(strings.Join(a.VMs, ", "), "-"),
					text.FirstClause(a.Why)})
			}
			columns(w, rows)
			return
		}
		rows := [][]string{{"HOST", "QUANTITY", "NUMBER"}}
		for _, a := range list.Alarms {
			rows = append(rows, []string{a.Host, a.Kind, fmt.Sprint(a.Count)})
		}
		columns(w, rows)
	})
}
