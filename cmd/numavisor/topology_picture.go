package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/picture"
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

// withVMs observes this host. A note says that VMs may be missing where a
// hypervisor could not list them.
func (f *hostFlags) withVMs(c *cobra.Command) (inventory.Host, error) {
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	o, err := f.options(ctx)
	if err != nil {
		return inventory.Host{}, err
	}
	h, err := local.Open(o)
	if err != nil {
		return inventory.Host{}, fmt.Errorf("opening this host: %w", err)
	}
	defer h.Close()
	inv, err := h.Observe(ctx)
	if err != nil {
		return inv, err
	}
	for _, g := range inv.HiddenBy() {
		printf(c.ErrOrStderr(), "numavisor: note: the picture may lack VMs: %s: %s\n", g.What, g.Why)
	}
	return inv, nil
}
