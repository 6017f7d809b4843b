// Numavisor-guest runs in a mirrored VM. It hands vCPUs that the VM does not need to
// the host, and takes them back, as the host's daemon says.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/internal/guestagent"
)

// Exit statuses of the command contract.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// memoryLimit is where the collector of garbage becomes eager, in bytes.
const memoryLimit = 6 << 20

// linkedVersion is set by the Makefile with the linker's -X.
var linkedVersion string

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	flags := flag.NewFlagSet("numavisor-guest", flag.ContinueOnError)
	channel := flags.String("channel", "/dev/virtio-ports/"+guest.Port,
		"the serial `port` to the host, or a Unix socket")
	bench := flags.Int("bench", 0, "measure each means, alternating, this many `times` on the last vCPU, and end")
	version := flags.Bool("version", false, "print the version and end")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		if err == nil {
			fmt.Fprintf(os.Stderr, "numavisor-guest: %q: no argument is expected\n", flags.Arg(0))
		}
		return exitUsage
	}
	if *version {
		fmt.Println("numavisor-guest", linkedVersion)
		return exitDone
	}
	debug.SetMemoryLimit(memoryLimit)
	var err error
	if *bench > 0 {
		err = guestagent.Bench(os.Stdout, *bench)
	} else {
		err = serve(*channel)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "numavisor-guest: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// serve runs the agent.
func serve(channel string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	runtime.GOMAXPROCS(1) // nothing is done at once
	return guestagent.Run(ctx, guestagent.Options{Channel: channel,
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }})
}
