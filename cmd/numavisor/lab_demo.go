package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/demo"
)

func labDemoCommand() *cobra.Command {
	var shape string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show how binding corrects misplaced VMs while they run",
		Long: `Boots a NUMA host in which far memory is slow and starts three VMs by libvirt
alone, each with a common mistake, and one through Numavisor. Counts how far
their memory accesses go, binds the misplaced VMs while they run, and counts
again. Takes three to six minutes on two idle CPUs.`,
		Example: `  numavisor lab demo
  numavisor lab demo --shape genoa-cxl`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := lab.FindShape(shape)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return demo.Run(ctx, demo.Options{Shape: s, Out: c.OutOrStdout()})
		},
	}
	c.Flags().StringVar(&shape, "shape", "square4", "a built-in shape or a file; needs four nodes or more with 1G each")
	timeLimitFlag(c.Flags(), &timeout, "give up after this time")
	return c
}
