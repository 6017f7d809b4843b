package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/top"
)

// plainWidth is the width of one plain picture where no terminal has one.
const plainWidth = 160

// topCommand shows the daemon that dial reaches.
func topCommand(dial func(socket string) top.Daemon) *cobra.Command {
	var (
		socket   string
		once     bool
		interval time.Duration
		in       remote
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show nodes, VMs and moves live",
		Long: `Shows the measurements of this host's daemon, live: load, memory and remote
accesses of each node and VM, moves in progress, advised moves, and alarms. Keys
sort, filter and inspect; 'a' makes an advised move, 'c' cancels a move, 'p' pauses
all moves, and '?' lists all keys. Without a terminal, with --once, and with -o json
or yaml, it prints the current state once.

With --server, shows the hosts of a fleet, its migrations in progress, and the VMs that
wait most for CPUs.`,
		Example: `  numavisor top
  numavisor top --once | grep degraded
  numavisor top -o json | jq '.guests[].local_share'`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return wrongUse("--interval %v: allowed is 100ms or more", interval)
			}
			if client, err := in.client(c, "once", "interval"); client != nil || err != nil {
				return errorOr(err, func() error { return topRemote(c, client, once, interval) })
			}
			d := dial(socket)
			format, err := c.Flags().GetString("output")
			if err != nil {
				return err
			}
			if once || format != "table" || !isTerminal(c.InOrStdin()) || !isTerminal(c.OutOrStdout()) {
				return printStatus(c, d)
			}
			screen, _ := fileOf(c.OutOrStdout()) // a terminal is a file
			return top.Run(c.Context(), d, interval, c.InOrStdin(), screen)
		},
	}
	socketFlag(c, &socket)
	in.flag(c)
	c.Flags().BoolVar(&once, "once", false, "print the current state once")
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two requests to the daemon")
	return c
}

func dialDaemon(socket string) top.Daemon { return hostapi.Dial(socket) }

// printStatus prints one picture, or the status as -o says.
func printStatus(c *cobra.Command, d top.Daemon) error {
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	s, err := d.Status(ctx)
	if err != nil {
		return err
	}
	return emit(c, s, func(w io.Writer) { fmt.Fprint(w, top.Plain(&s, time.Now(), widthOf(w))) })
}

func isTerminal(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(f.Fd())
}

// widthOf is the width of the terminal that w is, or a width for files.
func widthOf(w io.Writer) int {
	if f, ok := fileOf(w); ok {
		if width, _, err := term.GetSize(f.Fd()); err == nil && width > 0 {
			return width
		}
	}
	return plainWidth
}
