package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// notePolicyOfDaemon prints a note if this host's daemon uses another policy
// than the command. If no daemon answers, or the command decides about another
// host, it prints no note.
func (f *hostFlags) notePolicyOfDaemon(c *cobra.Command, socket string, used policy.Policy) {
	if f.from.elsewhere() {
		return
	}
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	if s, err := hostapi.Dial(socket).Status(ctx); err == nil {
		notePolicies(c.ErrOrStderr(), f.policy, used, s.Policy)
	}
}

// noteDaemon prints a note if this host's daemon uses another policy than the
// command, and one if automatic moves are paused. If no daemon answers, it prints
// no note.
func (f *hostFlags) noteDaemon(c *cobra.Command, socket string, used policy.Policy) {
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	if s, err := hostapi.Dial(socket).Status(ctx); err == nil {
		notePolicies(c.ErrOrStderr(), f.policy, used, s.Policy)
		notePause(c.ErrOrStderr(), c.Name(), s.Pause)
	}
}

// notePause says that an operator paused automatic moves. A command of an
// operator acts all the same.
func notePause(w io.Writer, command string, p *status.Pause) {
	if p == nil {
		return
	}
	until := "until 'numavisor resume'"
	if !p.Until.IsZero() {
		until = "until " + moment(p.Until)
	}
	why := ""
	if p.Why != "" {
		why = " (" + p.Why + ")"
	}
	printf(w, "numavisor: note: the daemon is paused %s%s; %s acts all the same\n", until, why, command)
}

func notePolicies(w io.Writer, file string, used policy.Policy, daemon status.Policy) {
	if daemon.Digest == "" || daemon.Digest == used.Digest() {
		return
	}
	if daemon.File == file {
		printf(
			w,
			"numavisor: note: the daemon still uses an earlier content of %s; SIGHUP makes it read the file again\n",
			file,
		)
		return
	}
	printf(w, "numavisor: note: this command uses the policy in %s; the daemon uses another one, in %s\n", file,
		daemon.File)
}
