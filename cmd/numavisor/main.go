// Numavisor puts the vCPUs and memory of each virtual machine on the right NUMA
// nodes of its host, corrects placements that degrade, and explains what it does.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/room"
	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/topology"
)

// Exit statuses of the command contract.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitPartial = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run carries out one command line and returns its exit status.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	out := &sink{to: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	err := out.check(root.ExecuteContext(ctx))
	if err == nil {
		return exitDone
	}
	var status exitError
	if errors.As(err, &status) {
		return int(status)
	}
	printError(stderr, askedFormat(args), err)
	return statusOf(err)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "numavisor",
		Short: "Put virtual machines on the right NUMA nodes, and verify the result",
		Long: `Numavisor chooses the NUMA nodes for the vCPUs and memory of each virtual machine
(VM) of a host, binds the VM to them, and verifies the result with the kernel's
statistics.

Exit status: 0 done, 1 failed, 2 usage error (arguments, or the content of a file),
3 done in part (the output says what is missing).`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:       thisBuild().String(),
	}
	// Check the flags before the command acts: the command must be able to report
	// its effects in the requested format.
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		return cmp.Or(checkFormat(c), checkFlags(c), needsRoot(c, os.Geteuid()))
	}
	root.PersistentFlags().StringP("output", "o", "table", "output format: table, json or yaml")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
	})
	root.SetHelpCommand(helpCommand())
	root.SetUsageFunc(printUsage)
	root.AddCommand(
		topologyCommand(), poolCommand(), captureCommand(), placeCommand(), scheduleCommand(), balanceCommand(),
		createCommand(), deleteCommand(), listCommand(), showCommand(),
		hostsCommand(), hostCommand(), userCommand(), tokenCommand(), projectCommand(), auditCommand(),
		upCommand(), startCommand(), stopCommand(), resizeCommand(), migrateCommand(),
		bindCommand(), runCommand(), applyCommand(), undoCommand(), historyCommand(),
		daemonCommand(), alarmsCommand(), topCommand(dialDaemon), pauseCommand(), resumeCommand(),
		serverCommand(), doctorCommand(), labCommand(), versionCommand(),
		completionCommand(), manCommand(),
	)
	root.InitDefaultHelpCmd()
	addCompletions(root)
	explainArgs(root)
	return root
}

// knownCommand refuses the name of a command that does not exist.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("no command %q%s", args[0], didYouMean(args[0], names))
}

// explainArgs makes cobra's errors about arguments, and about flags that exclude
// each other, usage errors.
func explainArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := cmp.Or(check(c, args), checkExclusive(c)); err != nil {
				return usageError{fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
}

// usageError marks a usage error of a command: exit status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func wrongUse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// partialError names the part of an action that was not done: exit status 3.
type partialError struct{ error }

func (e partialError) Unwrap() error { return e.error }

// exitError passes on the status of a command that was run; nothing is printed.
type exitError int

func (s exitError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func statusOf(err error) int {
	var usage usageError
	var file *strictyaml.Error
	var partial partialError
	switch {
	case errors.As(err, &usage), errors.As(err, &file), errors.Is(err, topology.ErrNotHere):
		return exitUsage
	case errors.As(err, &partial):
		return exitPartial
	}
	return exitFailed
}

// causal is an error that separates what failed, and what to do, from its causes.
type causal interface {
	error
	Brief() string
	Causes() []string
}

// parts splits the text of an error: a line that says what failed and what to do,
// and its causes. An error that is not causal has the causes in its line.
func parts(err error) (line string, causes []string) {
	oneLine := func(s string) string {
		return fleetapi.HideTokens(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
	}
	var of causal
	if !errors.As(err, &of) || len(of.Causes()) == 0 {
		return oneLine(err.Error()), nil
	}
	for _, cause := range of.Causes() {
		causes = append(causes, oneLine(cause))
	}
	return oneLine(strings.Replace(err.Error(), of.Error(), of.Brief(), 1)), causes
}

// printCauses writes each cause in a line of its own, below the line that it explains.
func printCauses(w io.Writer, causes ...string) {
	for _, cause := range causes {
		printf(w, "  cause: %s\n", cause)
	}
}

// printError writes an error in one line and its causes below it, or all as
// {"error":{...}} if JSON is requested. The errors of a file have a line each.
func printError(w io.Writer, format string, err error) {
	var faults *strictyaml.Error
	if format != "json" && errors.As(err, &faults) {
		for line := range strings.Lines(faults.Error()) {
			printf(w, "numavisor: %s\n", fleetapi.HideTokens(strings.TrimSuffix(line, "\n")))
		}
		return
	}
	line, causes := parts(err)
	if format != "json" {
		printf(w, "numavisor: %s\n", line)
		printCauses(w, causes...)
		return
	}
	kind := map[int]string{exitFailed: "failed", exitUsage: "usage", exitPartial: "partial"}[statusOf(err)]
	var document struct {
		Error struct {
			Kind    string `json:"kind"`
			Message string `json:"message"`
			Detail  any    `json:"detail,omitempty"`
		} `json:"error"`
	}
	document.Error.Kind = kind
	document.Error.Message = strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	var noFit *place.NoFitError
	var refusal *room.RefusalError
	switch {
	case errors.As(err, &refusal):
		document.Error.Detail = refusal
	case errors.As(err, &noFit):
		document.Error.Detail = noFit
	}
	data, _ := json.Marshal(document) // strings and plain values only
	fmt.Fprintf(w, "%s\n", data)
}
