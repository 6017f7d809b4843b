package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/peers"
)

// completionCommand replaces cobra's own, which the help would not explain.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Write the completion script of a shell",
		Long: `Writes a script with which the shell completes commands, flags, names of VMs and
values. The packages install this script. Without a package, load it as below.
In bash, the script needs the package bash-completion.`,
		Example: `  source <(numavisor completion bash)
  numavisor completion zsh > "${fpath[1]}/_numavisor"
  numavisor completion fish > ~/.config/fish/completions/numavisor.fish`,
		Args:      cobra.MatchAll(takes(1, 1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			w := c.OutOrStdout()
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(w, true)
			case "zsh":
				return c.Root().GenZshCompletion(w)
			case "fish":
				return c.Root().GenFishCompletion(w, true)
			}
			return fmt.Errorf("no completion for %s", args[0]) // OnlyValidArgs has refused it
		},
	}
}

// addCompletions has the shell complete values of flags and names of VMs. A
// shell completes file names only where a file is meant.
func addCompletions(root *cobra.Command) {
	choices := guest.BindFlags(pflag.NewFlagSet("choices", pflag.ContinueOnError)).Choices()
	choices["scope"] = []string{"off", "count", "felt"}
	choices["rule"] = []string{ruleNumavisor, ruleLibxl}
	choices["scheduler"] = []string{"credit", "credit2", "null", "rtds", "arinc653"}
	choices["hypervisor"] = []string{"kvm", "xen"}
	choices["hypervisor-type"] = []string{"kvm", "qemu", "xen"}
	choices["role"] = fleetapi.Role("").Words()
	choices["managers"] = managerNames()
	choices["layout"] = layoutNames()
	choices["start"] = peers.Starts()
	choices["change"] = peers.Changes()
	for _, c := range allCommands(root) {
		complete := func(f *pflag.Flag) {
			_ = c.RegisterFlagCompletionFunc(f.Name, completionOf(f, choices)) // the flag exists
		}
		c.LocalNonPersistentFlags().VisitAll(complete)
		c.PersistentFlags().VisitAll(complete)
		switch {
		case slices.Contains([]string{"show", "bind", "delete", "history"}, c.Name()) && c.Parent() == root:
			c.ValidArgsFunction = firstOnly(completeVMs)
		case c.Name() == "list":
			c.ValidArgsFunction = completeVMs
		case c.Name() == "apply" || c.ValidArgs != nil || c.ValidArgsFunction != nil: // a file, or words
		case c.Args != nil && c.Args(c, nil) == nil: // no argument, or the ID of an entry
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

func allCommands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// completionOf returns what completes the value of a flag.
func completionOf(f *pflag.Flag, choices map[string][]string) cobra.CompletionFunc {
	switch f.Name {
	case "spec", "xml", "xl", "inventory", "capabilities", "xl-info", "hwloc", "measured", "policy", "root", "disk",
		"kernel",
		"initrd", "serial-log", "emulator-path", "qemu", "results", "socket":
		return files(cobra.ShellCompDirectiveDefault)
	case "state", "records", "share":
		return files(cobra.ShellCompDirectiveFilterDirs)
	case "guest":
		return completeVMs
	case "shape":
		return completeShapes
	case "output":
		return completeFormats
	}
	return cobra.FixedCompletions(choices[f.Name], cobra.ShellCompDirectiveNoFileComp)
}

// completeFormats offers what -o takes: list knows more forms than the others.
func completeFormats(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	formats := []string{"table", "json", "yaml"}
	if c.Name() == "list" {
		formats = append(formats, "wide", "name")
	}
	return formats, cobra.ShellCompDirectiveNoFileComp
}

func files(which cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { return nil, which }
}

// firstOnly completes one argument and no more.
func firstOnly(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(c, args, begun)
	}
}

// completeShapes offers the lab's shapes; a file may be one, too.
func completeShapes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	shapes, err := lab.Shapes()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, s := range shapes {
		names = append(names, s.Name+"\t"+s.About)
	}
	return names, cobra.ShellCompDirectiveDefault
}

// completionTime limits the search for VMs: the user waits for it after
// pressing Tab.
const completionTime = 2 * time.Second

// completeVMs offers this host's VMs. A host that does not answer in time
// offers none.
func completeVMs(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	uri := ""
	if f := c.Flag("connect"); f != nil {
		uri = f.Value.String()
	}
	found := make(chan []string, 1)
	go func() { found <- vmNames(ctx, uri) }() // connecting to libvirt does not end with a context
	select {
	case names := <-found:
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }),
			cobra.ShellCompDirectiveNoFileComp
	case <-ctx.Done():
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func vmNames(ctx context.Context, uri string) []string {
	h, err := local.Open(local.Options{URI: uri})
	if err != nil {
		return nil
	}
	defer h.Close()
	inv, err := h.Observe(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, g := range inv.Guests {
		names = append(names, g.Name)
	}
	return names
}
