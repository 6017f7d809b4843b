package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/peers"
)

func labBenchCommand() *cobra.Command {
	o := peers.Options{Layout: peers.Layout{Guests: 3, VCPUs: 2, NodeCPUs: 4, GuestMemory: 448 * topology.MiB, DelayScale: 3}}
	var manager string
	c := &cobra.Command{
		Use: "bench",
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := peers.FindManager(manager)
			if err != nil {
				return err
			}
			o.Progress = progressLines(c.ErrOrStderr())
			r, err := peers.Measure(c.Context(), o, m)
			if err != nil {
				return err
			}
			e := json.NewEncoder(os.Stdout)
			return e.Encode(r)
		},
	}
	f := c.Flags()
	f.StringVar(&manager, "manager", "none", "")
	f.IntVar(&o.Guests, "guests", 3, "")
	f.IntVar(&o.VCPUs, "vcpus", 2, "")
	f.IntVar(&o.NodeCPUs, "node-cpus", 4, "")
	f.Float64Var(&o.DelayScale, "delay-scale", 3, "")
	f.DurationVar(&o.Window, "window", 5*time.Second, "")
	f.IntVar(&o.Windows, "windows", 6, "")
	f.DurationVar(&o.Limit, "limit", 6*time.Minute, "")
	return c
}
