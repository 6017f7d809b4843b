// Numavisor-server is the server of a fleet of hosts: users ask it for VMs, it chooses the host and
// the NUMA nodes of each, and the daemons of the hosts carry that out.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses of the command contract.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// defaultData is where the server's records are.
const defaultData = "/var/lib/numavisor-server"

// linkedVersion is set by the Makefile with the linker's -X.
var linkedVersion string

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const (
	// garbage is how much garbage in bytes may be in the heap before it is collected. A collection reads all records,
	// however little garbage it finds: a share of a small fleet's heap would be collected many times a second.
	garbage = 64 << 20
	// leastGrowth is by how many percent of what stays the heap may grow at least.
	leastGrowth = 20
)

// collection is garbage that each collection finds.
type collection struct{ _ [64]byte }

// collectLater lets the heap grow by a fixed size between collections. Go knows only growth in percent.
func collectLater(c *collection) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(growth(float64(live[0].Value.Uint64())))
	runtime.SetFinalizer(c, collectLater)
}

// growth is how much a heap may grow until the next collection, in percent of its live bytes. Go takes the live part as
// 4 MiB at least (package runtime, heapminimum).
func growth(live float64) int {
	const least = 4 << 20
	return int(max(leastGrowth, 100*garbage/max(live, least)))
}

// run carries out one command line and returns its exit status.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		collectLater(&collection{})
	}
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	_, _ = fmt.Fprintf(stderr, "numavisor-server: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// usageError marks an error of usage: exit status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func rootCommand() *cobra.Command {
	root := runCommand()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = version()
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
	})
	root.AddCommand(initCommand(), backupCommand(), restoreCommand(), recoverAdminCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: no argument is expected; see '%s --help'", args[0], c.CommandPath())}
	}
	return nil
}

func version() string {
	if linkedVersion != "" {
		return linkedVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
