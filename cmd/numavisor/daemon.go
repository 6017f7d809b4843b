package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"os/user"
	"runtime"
	"runtime/debug"
	goruntime "runtime/metrics"
	"strconv"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/metrics"
	"github.com/numavisor/numavisor/internal/status"
)

func daemonCommand() *cobra.Command {
	var on hostFlags
	var socket, listen string
	var every time.Duration
	var verbose bool
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Watch this host, raise alarms, and move VMs where that pays",
		Long: `Watches the host's nodes and VMs every second, raises alarms, and plans moves of
degraded VMs. It moves VMs in mode auto; for VMs in mode advise it only shows the
moves ('numavisor top', 'numavisor history'). Without a policy, VMs that Numavisor
created are in mode auto and all others in mode advise.

With --join, the daemon joins a fleet first: 'numavisor server init', or the fleet's
administrator, gives the address, the token and the fingerprint. From then on each
start takes part in the fleet; 'numavisor daemon --leave' ends that. Without the server,
the daemon does all of its other work.

Runs in the foreground until it receives SIGTERM. It then stops a move in progress
at the next slice; the next start of the daemon finishes this move or rolls it back.
VMs run on without the daemon. On SIGHUP, the daemon reads its policy again.`,
		Example: `  numavisor daemon
  numavisor daemon --metrics :9177
  numavisor daemon --join server1:9443 --token TOKEN --ca-fingerprint sha256:FINGERPRINT`,
		Args: takes(0, 0),
	}
	var in membership
	in.flags(c)
	on.flags(c, withTopology, withPolicy, withPace, withRecords)
	_ = c.Flags().MarkHidden("timeout")
	socketFlag(c, &socket)
	c.Flags().StringVar(&listen, "metrics", "", "also serve Prometheus metrics on this address, for example :9177")
	c.Flags().DurationVar(&every, "every", time.Second, "time between samples")
	c.Flags().BoolVar(&verbose, "verbose", false, "log each observation and each plan, with its duration")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return startDaemon(c, daemonFlags{&on, &in, socket, listen, every, verbose})
	}
	return c
}

// daemonFlags are the flags of daemon.
type daemonFlags struct {
	on             *hostFlags
	in             *membership
	socket, listen string
	every          time.Duration
	verbose        bool
}

// startDaemon runs the daemon until its context ends.
func startDaemon(c *cobra.Command, f daemonFlags) error {
	if f.in.leave {
		return leaveFleet(c, f.on.records)
	}
	frugal()
	if f.every < 100*time.Millisecond || f.every > time.Minute {
		return wrongUse("--every %v: allowed are 100ms to 1m", f.every)
	}
	f.on.timeout = forever
	h, done, err := f.on.open(c)
	if err != nil {
		return err
	}
	defer done()
	if err := checkXenDaemon(h); err != nil {
		return err
	}
	h.Ledger.Wait = decisionTime
	l, err := daemon.Listen(c.Context(), f.socket)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // what serves closes it first
	watcher := h.Watch()
	defer func() { _ = watcher.Close() }() // it only read
	o := h.DaemonOptions(watcher)
	o.Every, o.PolicyFile = f.every, f.on.policy
	o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: logLevel(f.verbose)}))
	service, err := systemdService()
	if err != nil {
		return err
	}
	o.Supervisor = service.supervisor(o.Log)
	takePart, err := f.in.agent(c.Context(), h, &o)
	if err != nil {
		return err
	}
	agents := h.Agents(&o)
	d := daemon.New(o)
	stop := obeyChanges(c.Context(), d, f.on, service)
	defer stop()
	return serveAndRun(c.Context(), d, l, f.listen,
		daemonParts{takePart.run, agents, oneHost(h, d, takePart, f.in.images)})
}

// checkXenDaemon refuses what the daemon of a Xen host cannot do.
func checkXenDaemon(h *local.Host) error {
	if h.Xen == nil {
		return nil
	}
	if !handoff.RulesOf(h.Policy).CPUs.IsEmpty() {
		return errors.New("the policy names CPUs that VMs hand over, which a Xen host cannot do: remove handoff from " +
			"the policy")
	}
	return nil
}

// obeyChanges reads the policy file again at each SIGHUP. An invalid file
// changes nothing. It reports the beginning and the end of the reading to systemd.
func obeyChanges(ctx context.Context, d *daemon.Daemon, on *hostFlags, service service) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, unix.SIGHUP)
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hups:
			}
			service.notify(d.Log, reloading()...)
			reading, done := context.WithTimeout(ctx, policyTime)
			p, err := on.readPolicy(reading)
			done()
			if err == nil {
				err = d.SetPolicy(ctx, p)
			}
			if err != nil {
				d.Log.Error("the policy was not changed", "error", err)
			}
			service.notify(d.Log, sd.SdNotifyReady)
		}
	})
	return func() { signal.Stop(hups); cancel(); reader.Wait() }
}

// policyTime limits rereading the policy: a FIFO may have lost its writer.
const policyTime = 10 * time.Second

// frugal lets Go code run on one CPU at a time: with more, Go wakes a thread for each goroutine that becomes
// runnable, and lets every idle CPU mark the heap. With two CPUs the daemon used 18 % more CPU time on an idle host,
// and about a third more in the lab (docs/benchmarks.md, docs/benchmarks/2026-11.md). System calls, such as those that
// copy memory, still run in parallel.
// It also tunes the collection of garbage, see collectLater. The variables GOGC and GOMAXPROCS have priority.
func frugal() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		collectLater(&collection{})
	}
}

const (
	// roomy is the heap size in bytes up to which Go need not collect garbage.
	roomy = 8 << 20
	// leastGrowth is how much a larger heap may grow until the next collection, in percent of
	// its live part, most of which is history.
	leastGrowth = 20
)

// collection is garbage that each collection finds.
type collection struct{ _ [64]byte }

// collectLater lets the heap grow to a fixed size, or by a fifth if it is larger. Go knows
// only growth in percent: by default a heap of 4 MiB is collected each time that 4 MiB
// were allocated, which took a fifth of the daemon's CPU time on a host with four VMs.
func collectLater(c *collection) {
	live := []goruntime.Sample{{Name: "/gc/heap/live:bytes"}}
	goruntime.Read(live)
	debug.SetGCPercent(growth(float64(live[0].Value.Uint64())))
	runtime.SetFinalizer(c, func(c *collection) { collectLater(c) })
}

// growth is how much a heap may grow until the next collection, in percent of its live
// bytes. Go takes the live part as 4 MiB at least (package runtime, heapminimum).
func growth(live float64) int {
	const least = 4 << 20
	return int(max(leastGrowth, min(100*roomy/least, 100*roomy/max(live, 1)-100)))
}

func logLevel(verbose bool) slog.Level {
	if verbose {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// forever is the deadline of a command without one.
const forever = 100 * 365 * 24 * time.Hour

// decisionTime limits how long a move waits for decisions of other processes:
// the deadline of the daemon is no limit.
const decisionTime = time.Minute

// daemonParts are what runs in addition to the daemon's loop.
type daemonParts struct {
	takePart func(context.Context, *daemon.Daemon) error // in a fleet
	agents   []func(context.Context) error               // what talks with the agents in VMs
	api      func(context.Context) *fleetofone.Service   // the fleet's API for this host
}

// serveAndRun runs the daemon's loop, its servers, and its other parts. The first error ends all of them.
func serveAndRun(ctx context.Context, d *daemon.Daemon, l net.Listener, listen string, p daemonParts) error {
	var public net.Listener
	if listen != "" {
		var err error
		if public, err = listenPublic(ctx, listen); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	page, api := metricsPage(ctx, d), p.api(ctx)
	defer api.Wait()
	if public != nil {
		group.Go(func() error { return daemon.ServeMetrics(ctx, public, page) })
	}
	group.Go(func() error { return d.Serve(ctx, l, map[string]http.Handler{"GET /metrics": page, "/": api}) })
	group.Go(func() error { return d.Run(ctx) })
	group.Go(func() error { return p.takePart(ctx, d) })
	for _, run := range p.agents {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// oneHost serves the fleet's API for this host alone.
func oneHost(
	h *local.Host, d *daemon.Daemon, in fleetPart, images []string,
) func(context.Context) *fleetofone.Service {
	o := fleetofone.Options{Local: &h.Host.Host, Daemon: d, Fleet: in.has, User: peerName, Roster: d.Roster,
		Machines: h.Machines(images), Types: h.MachineTypes(), Version: thisBuild().Version, Log: d.Log}
	return func(ctx context.Context) *fleetofone.Service { return fleetofone.New(ctx, o) }
}

// peerName names the user whose process sends a request through the socket.
func peerName(ctx context.Context) string {
	peer, ok := daemon.Peer(ctx)
	if !ok {
		return "a user of the socket"
	}
	id := strconv.FormatUint(uint64(peer.Uid), 10)
	u, err := user.LookupId(id)
	if err != nil {
		return "uid " + id
	}
	return fmt.Sprintf("%s (uid %s)", u.Username, id)
}

// listenPublic listens on the address for metrics. An invalid address is wrong
// use; an address that is unavailable (in use, not this host's) is a failure.
func listenPublic(ctx context.Context, address string) (net.Listener, error) {
	const example = "give HOST:PORT or :PORT, for example :9177"
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, wrongUse("--metrics: %w; %s", err, example)
	}
	if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
		return nil, wrongUse("--metrics %q: %w; %s", address, err, example)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving metrics: %w; choose another address with --metrics", err)
	}
	return l, nil
}

// metricsPage serves the daemon's status in the Prometheus format, and an error
// once the daemon has ended.
func metricsPage(ctx context.Context, d *daemon.Daemon) http.Handler {
	program := thisBuild()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.New(func() (status.Status, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		s, err := d.Status(ctx)
		if err != nil {
			d.Log.Warn("no metrics", "error", err)
		}
		return s, err
	}, metrics.Build{Version: program.Version, Revision: program.Commit}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

func socketFlag(c *cobra.Command, socket *string) {
	c.Flags().StringVar(socket, "socket", hostapi.DefaultSocket, "socket of the daemon")
}
