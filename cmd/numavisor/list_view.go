package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
)

// listing says which VMs list shows, in which order, and how often.
type listing struct {
	names              []string
	sortBy             string
	drifted, unmanaged bool
	every              time.Duration
}

// orders are the orders of --sort. Figures sort the VM that needs attention first.
var orders = map[string]func(a, b operate.Truth) int{
	"name":   func(a, b operate.Truth) int { return cmp.Compare(a.Guest, b.Guest) },
	"memory": func(a, b operate.Truth) int { return cmp.Compare(b.Memory, a.Memory) },
	"local":  func(a, b operate.Truth) int { return cmp.Compare(known(a.LocalShare, 2), known(b.LocalShare, 2)) },
	"wait":   func(a, b operate.Truth) int { return cmp.Compare(known(b.WaitShare, -1), known(a.WaitShare, -1)) },
}

var orderNames = []string{"name", "memory", "local", "wait"}

// known is a share, or a value that sorts a VM without one last.
func known(share *float64, last float64) float64 {
	if share == nil {
		return last
	}
	return *share
}

func (l *listing) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&l.sortBy, "sort", "name", "order of the VMs: "+strings.Join(orderNames, ", "))
	f.BoolVar(&l.drifted, "drifted", false, "show only VMs that differ from their placement")
	f.BoolVar(&l.unmanaged, "unmanaged", false, "show only VMs that Numavisor did not place")
	f.DurationVarP(&l.every, "watch", "w", 0, "repeat at this interval until interrupted (-w alone: 2s)")
	f.Lookup("watch").NoOptDefVal = "2s"
	exclusive(c, "drifted", "unmanaged")
	c.Annotations = map[string]string{moreFormats: "wide name"}
}

func (l *listing) check() error {
	switch {
	case orders[l.sortBy] == nil:
		return wrongUse("--sort %q: allowed are %s%s", l.sortBy, strings.Join(orderNames, ", "),
			didYouMean(l.sortBy, orderNames))
	case l.every != 0 && l.every < 200*time.Millisecond:
		return wrongUse("--watch %v: allowed are 200ms or more", l.every)
	}
	return nil
}

// repeat calls show once, or at every interval until the operator interrupts.
func (l *listing) repeat(c *cobra.Command, show func(context.Context) error) error {
	if l.every == 0 {
		return show(c.Context())
	}
	// The command's deadline is for one look, so each look has its own. The root's context ends when the
	// operator interrupts, also in the middle of a look.
	ctx := c.Root().Context()
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, time.Minute)
		err := show(look)
		cancel()
		partial := partialError{}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.As(err, &partial):
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			printf(c.OutOrStdout(), "\n%s\n", now.Format(time.TimeOnly))
		}
	}
}

// print shows the chosen VMs of an inventory in the chosen form.
func (l *listing) print(c *cobra.Command, inv *inventory.Host) error {
	guests, err := l.choose(inv)
	if err != nil {
		return err
	}
	list := guestList{Guests: guests, Gaps: inv.Gaps}
	format, err := c.Flags().GetString("output")
	switch {
	case err != nil:
		return err
	case format == "name":
		for _, g := range guests {
			printf(c.OutOrStdout(), "%s\n", g.Guest)
		}
	case format == "wide":
		printList(c.OutOrStdout(), &inv.Topology, list, true)
	default:
		err = emit(c, list, func(w io.Writer) { printList(w, &inv.Topology, list, false) })
	}
	return cmp.Or(err, unseen(inv))
}

// choose filters and sorts the VMs. A name that no VM has is an error.
func (l *listing) choose(inv *inventory.Host) ([]operate.Truth, error) {
	all := operate.Truths(inv)
	for _, name := range l.names {
		if _, ok := inv.Guest(name); !ok {
			return nil, operate.Missing(*inv, name)
		}
	}
	all = slices.DeleteFunc(all, func(g operate.Truth) bool {
		switch {
		case len(l.names) > 0 && !slices.Contains(l.names, g.Guest):
			return true
		case l.drifted:
			return !g.Managed || len(g.Differences) == 0
		}
		return l.unmanaged && g.Managed
	})
	slices.SortStableFunc(all, orders[l.sortBy])
	return all, nil
}

// didYouMean suggests the allowed value that is nearest to a wrong one: "; did you mean x?", or nothing.
func didYouMean(word string, allowed []string) string {
	if near := text.Nearest(word, allowed); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}
