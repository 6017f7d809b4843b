package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/picture"
	"github.com/numavisor/numavisor/internal/topology"
)

// pictureWidth is how many columns a text picture takes at most: three nodes side by side.
const pictureWidth = 114

// drawHost prints a picture of the host: as text, or as SVG. The picture shows VMs
// if the inventory has some.
func drawHost(c *cobra.Command, format string, inv *inventory.Host) error {
	switch format {
	case "text":
		fmt.Fprint(c.OutOrStdout(), picture.Text(inv, pictureWidth))
	case "svg":
		fmt.Fprint(c.OutOrStdout(), picture.SVG(inv))
	default:
		return wrongUse("--picture %q: allowed are text, svg", format)
	}
	return nil
}

// withVMs observes this host and gives it the topology that the operator's flags describe. If the VMs
// cannot be listed, the command still draws the host, and says so.
func withVMs(c *cobra.Command, t topology.Topology) inventory.Host {
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	inv, err := observeHere(ctx)
	if err != nil {
		printf(c.ErrOrStderr(), "numavisor: note: the picture shows no VMs: %v\n", err)
	}
	for _, g := range inv.HiddenBy() {
		printf(c.ErrOrStderr(), "numavisor: note: the picture may lack VMs: %s: %s\n", g.What, g.Why)
	}
	inv.Topology = t
	return inv
}

func observeHere(ctx context.Context) (inventory.Host, error) {
	h, err := local.Open(local.Options{Claims: claim.DefaultFolder})
	if err != nil {
		return inventory.Host{}, fmt.Errorf("opening this host: %w", err)
	}
	defer h.Close()
	return h.Observe(ctx)
}
