package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// completionCommand replaces cobra's own, which the help would not explain.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Write the completion script of a shell",
		Long: `Writes a script that has the shell complete commands, flags, names of VMs and
values. Packages install it; without a package, load it in the shell.`,
		Example: `  source <(numavisor completion bash)
  numavisor completion zsh > "${fpath[1]}/_numavisor"
  numavisor completion fish > ~/.config/fish/completions/numavisor.fish`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
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
