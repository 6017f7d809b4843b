// Fleetload measures how a fleet's server copes with many hosts: it fills the records of a fleet, starts the real
// server, lets simulated daemons join and report over the real protocol, sends requests of users meanwhile, and
// prints each figure next to its goal.
//
//	go run ./tools/fleetload -server bin/numavisor-server -hosts 10000 -vms 100000 -daemons 2000 -time 1m
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/tools/process"
)

// options are the size of the fleet and of the load.
type options struct {
	server         string
	hosts, vms     int
	daemons        int           // that are connected; the other hosts are records
	time           time.Duration // of each measurement
	rate, clients  int           // requests a second while daemons report; users who place VMs as fast as they can
	folder         string
	records        string // folder of records for several runs
	onlyPlacements bool
	noDecisions    bool
	noPlacements   bool
}

func (o *options) flags(f *flag.FlagSet) {
	f.StringVar(&o.server, "server", "bin/numavisor-server", "program of the server")
	f.IntVar(&o.hosts, "hosts", 10_000, "hosts in the records")
	f.IntVar(&o.vms, "vms", 100_000, "VMs in the records, at most 12 for each host")
	f.IntVar(&o.daemons, "daemons", 2000, "hosts whose daemons are connected and report")
	f.DurationVar(&o.time, "time", time.Minute, "time of each measurement")
	f.IntVar(&o.rate, "rate", 20, "requests of users a second while daemons report")
	f.IntVar(&o.clients, "clients", 16, "users who place VMs at the same time, as fast as they can")
	f.StringVar(&o.folder, "folder", "", "folder for the records of the server (default: a temporary one)")
	f.StringVar(&o.records, "records", "",
		"folder of records to start from, which are written there if it does not exist (default: none)")
	f.BoolVar(&o.noDecisions, "no-decisions", false, "do not measure decisions in this process")
	f.BoolVar(&o.noPlacements, "no-placements", false, "do not measure how fast users can place VMs")
	f.BoolVar(&o.onlyPlacements, "only-placements", false, "start no daemons")
}

func (o *options) check() error {
	switch {
	case o.hosts < 1 || o.vms < 0 || o.daemons < 0 || o.time <= 0 || o.rate < 1 || o.clients < 1:
		return errors.New("all numbers and the time must be positive")
	case o.daemons > o.hosts:
		return fmt.Errorf("-daemons %d: at most -hosts %d", o.daemons, o.hosts)
	case o.vms > mostOnHost*o.hosts:
		return fmt.Errorf("-vms %d: at most %d for each of %d hosts", o.vms, mostOnHost, o.hosts)
	}
	return nil
}

func main() {
	if is, err := asDaemons(os.Args); is {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var o options
	o.flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := o.run(ctx, func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
	})
	fmt.Print(r.table())
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleetload:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to do
	}
}

// run makes all measurements.
func (o *options) run(ctx context.Context, log func(string, ...any)) (r report, err error) {
	if err := errors.Join(o.check(), raiseFiles(o.daemons)); err != nil {
		return r, err
	}
	folder, err := os.MkdirTemp(o.folder, "fleetload")
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nlogs: %s", err, folder)
			return
		}
		err = os.RemoveAll(folder)
	}()
	path, err := filepath.Abs(o.server)
	if err != nil {
		return r, err
	}
	log("drawing %d hosts", o.hosts)
	sample, err := drawFleet(ctx, o.hosts, o.vms)
	if err != nil {
		return r, err
	}
	if !o.noDecisions {
		log("deciding in this process for %v", o.time)
		if err := r.decisions(sample, o.time); err != nil {
			return r, err
		}
	}
	s := &served{path: path, folder: folder}
	defer s.stop()
	if err := o.provide(ctx, s, sample, log); err != nil {
		return r, err
	}
	if !o.noPlacements {
		if err := o.placements(ctx, s, &r, log); err != nil {
			return r, err
		}
	}
	if o.daemons == 0 || o.onlyPlacements {
		return r, nil
	}
	if err := s.unreach(ctx); err != nil {
		return r, err
	}
	return r, o.reports(ctx, s, &r, log)
}

// provide gives the server the records of the fleet.
func (o *options) provide(ctx context.Context, s *served, d *drawn, log func(string, ...any)) error {
	if o.records != "" {
		if found, err := s.use(ctx, o.records, d); found || err != nil {
			return err
		}
	}
	log("writing the records of %d hosts and %d VMs", o.hosts, o.vms)
	if err := s.init(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, d); err != nil {
		return fmt.Errorf("writing the records: %w", err)
	}
	if o.records == "" {
		return nil
	}
	return s.save(ctx, o.records)
}

// placements measures the server with all records, and how fast users can place VMs.
func (o *options) placements(ctx context.Context, s *served, r *report, log func(string, ...any)) error {
	took, err := s.start(ctx)
	if err != nil {
		return err
	}
	r.add("server: seconds until it answers", "%.1f", took.Seconds())
	time.Sleep(settle(o.time))
	used, err := process.CPU(s.program.PID())
	if err != nil {
		return err
	}
	r.add(fmt.Sprintf("  CPU seconds of the start and of the %v after it", settle(o.time)), "%.1f", used.Seconds())
	if err := r.memory("after its start", s.program.PID()); err != nil {
		return err
	}
	log("placing VMs for %v, all hosts reachable, %d users", o.time, o.clients)
	if err := s.place(ctx, r, o.clients, o.time); err != nil {
		return err
	}
	if err := r.memory("after these placements", s.program.PID()); err != nil {
		return err
	}
	s.stop()
	return nil
}

// reports measures the server while daemons report and users send requests.
func (o *options) reports(ctx context.Context, s *served, r *report, log func(string, ...any)) error {
	if _, err := s.start(ctx); err != nil {
		return err
	}
	log("letting %d daemons join", o.daemons)
	d, err := s.startDaemons(ctx, o)
	if err != nil {
		return err
	}
	defer d.stop()
	log("measuring for %v, %d requests of users a second", o.time, o.rate)
	time.Sleep(settle(o.time))
	return s.measure(ctx, r, d, o)
}

// settle is the pause before a measurement, for what a start leaves to do.
func settle(measured time.Duration) time.Duration { return min(20*time.Second, measured) }
