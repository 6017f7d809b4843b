package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/operate"
)

func deleteCommand() *cobra.Command {
	var on hostFlags
	var in remote
	var force, dryRun bool
	c := &cobra.Command{
		Use:   "delete VM",
		Short: "Stop a VM at once and remove it from libvirt",
		Long: `Stops a VM at once, like a power cut, removes its configuration from libvirt, and
releases its reservations, huge pages included. Disk images stay. A VM that
Numavisor did not create needs --force.`,
		Example: `  numavisor delete web1 --dry-run
  numavisor delete web1`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := in.client(c, "dry-run", "timeout")
			if err != nil {
				return err
			}
			if client != nil {
				return deleteRemote(c, client, args[0], dryRun, on.timeout)
			}
			h, done, err := on.open(c)
			if err != nil {
				return err
			}
			defer done()
			r := operate.DeleteRequest{Name: args[0], Force: force}
			if dryRun {
				what, err := h.WouldDelete(c.Context(), r)
				if err != nil {
					return err
				}
				return emit(c, map[string]string{"would": what}, func(w io.Writer) { printf(w, "would %s\n", what) })
			}
			closeInterrupted(c, h)
			if err := h.Delete(c.Context(), r); err != nil {
				return err
			}
			return emit(c, map[string]string{"deleted": args[0]},
				func(w io.Writer) { printf(w, "%s: deleted\n", args[0]) })
		},
	}
	on.flags(c, withRecords)
	in.flag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be deleted, and delete nothing")
	c.Flags().BoolVar(&force, "force", false, "also delete a VM that Numavisor did not create")
	return c
}
