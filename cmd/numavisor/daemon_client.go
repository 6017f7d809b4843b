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
		Short: "Stop all moves of the daemon, for a time or until 'numavisor resume'",
		Long: `Stops all moves of the daemon. A move in progress stops at its next slice; its VM
runs on, and the daemon finishes the move after the pause. During the pause, the
daemon only advises moves. The pause survives a restart of the daemon.`,
		Example: `  numavisor pause --for 2h --why "load test"`,
		Args:    takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if length < 0 {
				return wrongUse("--for %v: must not be negative; 0 pauses until 'numavisor resume'", length)
			}
			if err := hostapi.Dial(socket).Pause(c.Context(), length, why); err != nil {
				return err
			}
			return said(c, "paused", pauseText(length))
		},
	}
	socketFlag(c, &socket)
	spanFlag(c.Flags(), &length, "for", "end the pause after this time (default: until resumed)")
	c.Flags().StringVar(&why, "why", "", "reason, shown by 'numavisor history' and 'top'")
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
		Long: `Ends a pause. The daemon first finishes a move that the pause interrupted, then
moves degraded VMs, as its policy says.`,
		Example: `  numavisor resume`,
		Args:    takes(0, 0),
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

// said prints that the daemon has carried out an order.
func said(c *cobra.Command, result, text string) error {
	return emit(c, map[string]string{"result": result}, func(w io.Writer) { printf(w, "%s\n", text) })
}
