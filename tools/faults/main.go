// Faults runs a fleet of real processes under load, breaks servers, members of etcd, daemons, libvirtd, clocks, disks
// and networks at random, and checks that nothing is lost, started twice or claimed twice. A seed gives the same
// schedule of requests and faults again; how the processes interleave differs.
//
//	go run ./tools/faults -server bin/numavisor-server -runs 200
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/host/agent"
)

// hostArgs are what the process of a host needs.
type hostArgs struct{ Name, Folder, Shared, Server, Token, Fingerprint string }

// asHost runs the process of a host, if this is one.
func asHost(args []string) (is bool, err error) {
	if len(args) != 3 || args[1] != "-host" {
		return false, nil
	}
	var a hostArgs
	if err := json.Unmarshal([]byte(args[2]), &a); err != nil {
		return true, err
	}
	return true, runHost(context.Background(), a.Name, a.Folder, a.Shared, agent.JoinRequest{Server: a.Server,
		Token: a.Token, Fingerprint: a.Fingerprint, Host: a.Name, ID: "id-" + a.Name})
}

// asProcess runs one of the processes of a fleet, if this is one.
func asProcess(args []string) (is bool, err error) {
	if is, err = asHost(args); !is {
		is, err = asMember(args)
	}
	return is, err
}

func main() {
	if is, err := asProcess(os.Args); is {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var o options
	runs := flag.Int("runs", 1, "number of runs")
	seed := flag.Uint64("seed", 1, "seed of the first run; each run has the next one")
	flag.StringVar(&o.server, "server", "bin/numavisor-server", "program of the server")
	flag.DurationVar(&o.time, "time", 8*time.Second, "time of faults in each run")
	flag.BoolVar(&o.apart, "apart", os.Getuid() == 0, "servers in network namespaces, with small disks: needs root")
	flag.StringVar(&o.etcd, "etcd", etcdByTurns,
		"where the records are: in the servers (own), in three members of etcd elsewhere (external), or by turns")
	flag.StringVar(&o.only, "only", "", "make only faults whose name begins so, such as 'clock s'")
	flag.StringVar(&o.before.server, "before-server", "", "an earlier program of the server: the runs upgrade from it")
	flag.StringVar(&o.before.hosts, "before-hosts", "", "an earlier program of this tool, with the daemon of its time")
	flag.IntVar(&o.id, "id", 0, "number of this tool, if several run at the same time")
	flag.Parse()
	failed := 0
	for i := range *runs {
		o.seed = *seed + uint64(i)
		began := time.Now()
		report, err := o.run(context.Background())
		fmt.Printf("seed %d: %s, %.0f s\n", o.seed, report, time.Since(began).Seconds())
		if err != nil {
			failed++
			fmt.Printf("seed %d FAILED: %v\n", o.seed, err)
		}
	}
	fmt.Printf("%d runs, %d failed\n", *runs, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// options are those of one run.
type options struct {
	server string
	seed   uint64
	time   time.Duration
	apart  bool
	id     int
	etcd   string
	only   string
	before earlier
}

const etcdOwn, etcdExternal, etcdByTurns = "own", "external", "turns"

// members is how many members an external cluster of etcd has; 0: the servers have the records.
func (o options) members() int {
	if o.etcd == etcdExternal || o.etcd == etcdByTurns && o.before.server == "" && o.seed%2 == 1 {
		return 3
	}
	return 0
}

const (
	servers, hosts, users = 3, 3, 3
	// settleTime is how long a fleet may take to agree once all is repaired.
	settleTime = 5 * time.Minute
)

// run is one run. It leaves the folder of a run that failed.
func (o options) run(ctx context.Context) (report string, err error) {
	folder, err := os.MkdirTemp("", "faults")
	if err != nil {
		return "", err
	}
	f := &aFleet{folder: folder, only: o.only, migrates: o.before.hosts == "", net: network{
		id: fmt.Sprintf("nvf%d", o.id), apart: o.apart, subnet: fmt.Sprintf("10.231.%d", o.id), base: 18100 + 50*o.id}}
	var unsaved error
	defer func() {
		if err == nil {
			err = errors.Join(f.violations(), os.RemoveAll(folder))
		} else {
			err = fmt.Errorf("%w\nlogs and evidence: %s", errors.Join(err, unsaved), folder)
		}
	}()
	defer func() {
		if err != nil {
			unsaved = f.evidence()
		}
		f.end()
	}()
	life, cancel := context.WithTimeout(ctx, o.time+2*settleTime)
	defer cancel()
	path, err := filepath.Abs(o.server)
	if err != nil {
		return "", err
	}
	of := size{servers: servers, members: o.members(), hosts: hosts, serverPath: cmp.Or(o.before.server, path),
		hostPath: o.before.hosts}
	if err := f.make(life, of); err != nil {
		return "", fmt.Errorf("making the fleet: %w", err)
	}
	h := &history{vms: map[string]fleet.RunState{}}
	faults, err := o.load(life, f, h, path)
	report = fmt.Sprintf("%d requests, %d migrations, %d of them to the end, %d VMs at the end, faults: %s", h.ops,
		h.migrations, f.migrated(), len(h.vms), strings.Join(faults, ", "))
	if err != nil {
		return report, err
	}
	if err := f.revive(life); err != nil {
		return report, err
	}
	last, cancelLast := context.WithTimeout(life, settleTime)
	defer cancelLast()
	return report, f.agree(last, h)
}

// load has users and faults at work, until the time is over and all is repaired.
func (o options) load(life context.Context, f *aFleet, h *history, program string) (faults []string, err error) {
	limit := o.time
	if o.before.server != "" {
		limit = settleTime // until all programs are replaced
	}
	busy, end := context.WithTimeout(life, limit)
	defer end()
	var all, people sync.WaitGroup
	errs := make(chan error, users+2)
	for id := range users {
		people.Go(func() { errs <- f.user(busy, life, id, o.seed, h) })
	}
	served := make(chan struct{})
	all.Go(func() { people.Wait(); close(served) })
	watched, stop := context.WithCancel(life)
	var watch sync.WaitGroup
	watch.Go(func() { errs <- f.watch(watched) })
	log := func(name string) { faults = append(faults, name) }
	if o.before.server == "" {
		all.Go(func() { errs <- errors.Join(f.breakThings(busy, life, o.seed, log), f.stayAlive(served)) })
	} else {
		all.Go(func() { defer end(); errs <- f.upgrade(life, o.seed, program, log) })
	}
	repeated := 0
	all.Go(func() { repeated = f.replay(busy, o.seed) })
	all.Wait()
	faults = append(faults, fmt.Sprintf("%d reports repeated", repeated))
	stop()
	watch.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return faults, err
}

// revive uses hosts again that were declared dead: once they have removed their copies of VMs.
func (f *aFleet) revive(ctx context.Context) error {
	for _, p := range f.hosts {
		err := f.retry(ctx, func(c *fleetapi.Client) error {
			h, err := c.Host(ctx, p.Name)
			if err != nil || h.Dead == nil {
				return err
			}
			_, err = c.DeclareAlive(ctx, p.Name)
			return err
		})
		if err != nil {
			return fmt.Errorf("host %s is not used again: %w", p.Name, err)
		}
	}
	return nil
}
