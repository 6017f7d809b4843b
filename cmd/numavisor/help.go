package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpGroup is a heading of the help with the commands or flags below it, in
// the order in which they are shown.
type helpGroup struct {
	heading string
	names   []string
}

// commandGroups holds each command of the program once.
func commandGroups() []helpGroup {
	return []helpGroup{
		{"First look (nothing is changed)", []string{"topology", "list", "show", "pool", "doctor", "top"}},
		{"Placing VMs and processes", []string{"place", "schedule", "create", "bind", "run", "delete"}},
		{"A fleet of hosts", []string{"up", "server", "hosts", "host", "start", "stop", "resize",
			"migrate", "user", "token", "project", "audit"}},
		{"Monitoring and balancing a host",
			[]string{"daemon", "balance", "apply", "pause", "resume", "alarms", "history", "undo", "capture"}},
		{"Trying it out in a lab", []string{"lab"}},
		{"Other", []string{"completion", "help", "version"}},
	}
}

// flagGroups holds each flag of each command once. A flag has the same meaning
// wherever it is offered.
func flagGroups() []helpGroup {
	return []helpGroup{
		{"What the VM or process needs", []string{"spec", "xml", "xl", "requests", "name", "vcpus", "memory",
			"page-size", "topology",
			"cells", "io-threads", "device", "movable", "immediate"}},
		{"Where it may go", []string{"nodes", "cpus", "pool", "max-nodes", "max-distance", "max-class"}},
		{"How it is bound", []string{"cpu-binding", "memory-binding", "smt", "emulator", "io-thread-policy"}},
		{"CPUs that VMs hand to each other", []string{"sharing", "min-vcpus", "weight", "home"}},
		{"The virtual machine", []string{"disk", "network", "kernel", "initrd", "append", "uefi", "serial-log",
			"emulator-path", "hypervisor-type", "transient"}},
		{"What the command does", []string{"pid", "dry-run", "explain", "rule", "scheduler", "headroom", "recompute",
			"recreate", "guest", "resume", "fix", "force", "make-room", "full-speed", "pace", "for", "why",
			"max-downtime", "post-copy", "copy-storage", "transport", "timeout"}},
		{"What the command shows", []string{"unmanaged", "drifted", "sort", "all", "since",
			"last", "timeline", "picture", "watch", "once", "interval"}},
		{"The daemon", []string{"metrics", "every", "verbose", "socket"}},
		{"The fleet", []string{"join", "join-file", "token", "ca-fingerprint", "host-name", "rack", "images",
			"migration-uri", "leave", "server", "project", "to", "address", "data",
			"role", "projects", "expires", "max-vms", "max-vcpus", "max-exclusive", "max-memory", "max-huge-pages"}},
		{"The lab", []string{"shape", "hypervisor", "guests", "scope", "libvirt", "share", "qemu"}},
		{"The benchmark", []string{"layout", "managers", "rounds", "host-nodes", "node-cpus", "start", "idle-guests",
			"idle-memory", "change", "change-at", "late-guests", "delay-scale", "window", "seconds", "limit", "results",
			"most"}},
		{"Host and sources", []string{"hosts", "inventory", "root", "capabilities", "xl-info", "hwloc", "measured",
			"housekeeping", "policy", "connect", "without-libvirt", "state", "records"}},
		{"Output and help", []string{"output", "help", "version"}},
	}
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		RunE: func(c *cobra.Command, args []string) error {
			of, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return wrongUse("no command %q%s; 'numavisor --help' shows all", strings.Join(args, " "),
					didYouMean(strings.Join(args, " "), namesOf(visible(of))))
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			of, _, err := c.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return namesOf(visible(of)), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// printUsage writes the part of a command's help after the description.
func printUsage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprintln(w, "Usage:")
	if !c.HasSubCommands() {
		printf(w, "  %s\n", c.UseLine())
	} else {
		printf(w, "  %s COMMAND\n", c.CommandPath())
	}
	if c.HasExample() {
		printf(w, "\nExamples:\n")
		fmt.Fprintln(w, c.Example)
	}
	printCommands(w, c)
	printFlags(w, c)
	if c.HasSubCommands() {
		printf(w, "\n'%s COMMAND --help' explains a command.\n", c.CommandPath())
	}
	return nil
}

func printCommands(w io.Writer, c *cobra.Command) {
	commands := visible(c)
	if len(commands) == 0 {
		return
	}
	groups := []helpGroup{{"Commands", namesOf(commands)}}
	if !c.HasParent() {
		groups = commandGroups()
	}
	for _, g := range groups {
		printf(w, "\n%s:\n", g.heading)
		for _, name := range g.names {
			if i := slices.IndexFunc(commands, func(c *cobra.Command) bool { return c.Name() == name }); i >= 0 {
				printf(w, "  %-12s%s\n", name, commands[i].Short)
			}
		}
	}
}

// helpWidth is the width of a help text, in columns; usages of flags are wrapped to it.
const helpWidth = 100

func printFlags(w io.Writer, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	for _, g := range flagGroups() {
		shown := pflag.NewFlagSet(g.heading, pflag.ContinueOnError)
		shown.SortFlags = false
		for _, name := range g.names {
			if f := flagOf(c, name); f != nil && !f.Hidden {
				shown.AddFlag(f)
			}
		}
		if shown.HasAvailableFlags() {
			printf(w, "\n%s:\n", g.heading)
			fmt.Fprint(w, shown.FlagUsagesWrapped(helpWidth))
		}
	}
}

// flagOf returns a flag of a command or of those above it.
func flagOf(c *cobra.Command, name string) *pflag.Flag {
	if f := c.LocalFlags().Lookup(name); f != nil {
		return f
	}
	return c.InheritedFlags().Lookup(name)
}

// visible returns the commands below c that the help lists.
func visible(c *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			all = append(all, sub)
		}
	}
	return all
}

func namesOf(commands []*cobra.Command) []string {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
	}
	return names
}
