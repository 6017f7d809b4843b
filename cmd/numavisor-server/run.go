package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/server/telemetry"
)

// options are the flags of the server.
type options struct {
	folder, listen, policy string
	verbose                bool
	series                 seriesOptions
}

func runCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "numavisor-server",
		Short: "Serve a fleet of hosts: REST API, scheduler, daemons of hosts",
		Long: `Serves the fleet whose records are in the data folder, which 'numavisor-server init'
made. The REST API, its description (/docs, /openapi.json) and the daemons of
hosts share one port, with TLS.

Runs in the foreground until it receives SIGTERM. Hosts and VMs run on without it.`,
		Example: `  numavisor-server --data /var/lib/numavisor-server`,
		Args:    noArguments,
		RunE:    func(c *cobra.Command, _ []string) error { return serve(c.Context(), c, &o) },
	}
	c.Flags().StringVar(&o.folder, "data", defaultData, "folder of the server's data")
	c.Flags().StringVar(&o.listen, "listen", "",
		"address to listen on (default: all addresses, with the port of 'init --address')")
	c.Flags().StringVar(&o.policy, "policy", "", "file with the policy of all hosts (default: the default policy)")
	o.series.flags(c.Flags())
	c.Flags().BoolVar(&o.verbose, "verbose", false, "log more")
	return c
}

// logTo returns the server's log.
func (o *options) logTo(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, c *cobra.Command, o *options) (err error) {
	log := o.logTo(c.ErrOrStderr())
	conf, err := readConfig(o.folder)
	if err != nil {
		return err
	}
	p, err := readPolicy(o.policy)
	if err != nil {
		return err
	}
	if _, err := o.series.receiver(); err != nil {
		return err
	}
	ca, err := readCA(o.folder)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(conf.Address)
	if err != nil {
		return fmt.Errorf("the address in %s: %w", configFile, err)
	}
	names := append([]string{host, "localhost", "127.0.0.1", "::1"}, conf.Names...)
	l, err := o.listenAt(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // what serves closes it first
	var renewal sync.WaitGroup
	renewing, stop := context.WithCancel(ctx)
	defer renewal.Wait()
	defer stop()
	// The others must accept its certificate before there is a quorum.
	renewal.Go(func() { conf.stayCertified(renewing, o.folder, ca, log) })
	records, err := openStore(ctx, o.folder, conf, ca, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	series, err := o.series.open(o.folder, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, series.Close()) }()
	s := server.New(server.Options{Store: records, CA: ca, Telemetry: series, Policy: p, Log: log, Version: version(),
		Address: conf.Address, Name: conf.name(), Names: names})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s.Run(ctx, func() {
			log.Info("ready", "address", l.Addr().String(), "ca", ca.Fingerprint())
			debug.FreeOSMemory() // reading the records took more than they need
		})
		return nil
	})
	group.Go(func() error { return s.Serve(ctx, l) })
	group.Go(func() error { return watchRecords(ctx, records) })
	o.alongside(ctx, group, records, series, log)
	return group.Wait()
}

// alongside starts what the fleet does not need: if it fails, the server goes on.
func (o *options) alongside(
	ctx context.Context, group *errgroup.Group, records *etcd.Store, series *telemetry.DB, log *slog.Logger,
) {
	group.Go(func() error {
		if err := takeBackups(ctx, o.folder, records); err != nil {
			log.Warn("backups need the server to be stopped", "error", err)
		}
		return nil
	})
	group.Go(func() error {
		if err := o.series.send(ctx, series); err != nil {
			log.Error("loads are not sent", "error", err)
		}
		return nil
	})
}

// listenAt listens at the address of --listen, or at all addresses with a port.
func (o *options) listenAt(ctx context.Context, port string) (net.Listener, error) {
	listen := o.listen
	if listen == "" {
		listen = ":" + port
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listening: %w; choose another address with --listen", err)
	}
	return l, nil
}

// watchRecords ends the server when its records can never be written again, so that it is started again.
func watchRecords(ctx context.Context, records *etcd.Store) error {
	select {
	case <-ctx.Done():
		return nil
	case <-records.Failed():
		return fmt.Errorf("the records cannot be written any more: %s", records.Failure())
	}
}

func readPolicy(path string) (policy.Policy, error) {
	if path == "" {
		return policy.Policy{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return policy.Policy{}, usageError{fmt.Errorf("reading the policy: %w", err)}
	}
	defer f.Close()
	p, err := policy.Parse(f)
	if err != nil {
		return p, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	return p, nil
}
