package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
)

func pauseCommand() *cobra.Command {
	var socket, why string
	var length time.Duration
	c := &cobra.Command{
		Use:   "pause",
		Short: "Have the daemon move nothing, for a time or until 'numavisor resume'",
		Long: `Holds all moves. One on its way stops at the next slice; its VM runs on, and
'numavisor resume' has the move finished. What would be moved is advised
meanwhile. A pause outlives the daemon.`,
		Example: `  numavisor pause --for 2h --why "load test"`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if length < 0 {
				return wrongUse("--for %v: a pause lasts some time, or with 0 until it is resumed", length)
			}
			if err := hostapi.Dial(socket).Pause(c.Context(), length, why); err != nil {
				return err
			}
			return said(c, "paused", pauseText(length))
		},
	}
	socketFlag(c, &socket)
	c.Flags().DurationVar(&length, "for", 0, "end the pause after this time (default: until resumed)")
	c.Flags().StringVar(&why, "why", "", "the reason, for whoever looks at the history")
	return c
}

func pauseText(length time.Duration) string {
	if length == 0 {
		return "paused until 'numavisor resume'"
	}
	return fmt.Sprintf("paused for %v", length)
}

func resumeCommand() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "resume",
		Short: "End a pause: the daemon moves VMs again",
		Long: `Ends a pause. A move that the pause cut short is finished first; then the
daemon moves degraded VMs, as its policy says.`,
		Example: `  numavisor resume`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := hostapi.Dial(socket).Resume(c.Context()); err != nil {
				return err
			}
			return said(c, "resumed", "resumed")
		},
	}
	socketFlag(c, &socket)
	return c
}

// said reports an order that the daemon carried out.
func said(c *cobra.Command, result, text string) error {
	return emit(c, map[string]string{"result": result}, func(w io.Writer) { printf(w, "%s\n", text) })
}
