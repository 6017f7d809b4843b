// Apitest runs schemathesis over the OpenAPI document that a real server serves: as an admin, as users of the lower
// roles, and as nobody. Simulated hosts report and run the VMs, and the tool makes those again that a run deletes.
// It fails if the server answers 5xx, or anything that the document does not allow. Before that it does the same with
// the API that a daemon serves for its own host.
//
//	go run ./tools/apitest -server bin/numavisor-server -schemathesis bin/api/bin/st -time 2m
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// options are those of the command line.
type options struct {
	server, schemathesis string
	time                 time.Duration
	seed                 int
	only                 string
}

// role is a user as which schemathesis runs. It gets a share of the time.
type role struct {
	name     string
	role     fleetapi.Role // empty: nobody, without a token
	projects []string
	share    int
}

func roles() []role {
	all, one := []string{fleetapi.AllProjects}, []string{fleetapi.DefaultProject}
	return []role{
		{"admin", fleetapi.Admin, all, 8},
		{"operator", fleetapi.Operator, all, 5},
		{"project-operator", fleetapi.Operator, one, 3},
		{"viewer", fleetapi.Viewer, all, 2},
		{"project-viewer", fleetapi.Viewer, one, 1},
		{"nobody", "", nil, 1},
	}
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", "bin/numavisor-server", "program of the server")
	flag.StringVar(&o.schemathesis, "schemathesis", "bin/api/bin/st", "program of schemathesis")
	flag.DurationVar(&o.time, "time", 2*time.Minute, "time of all runs together")
	flag.IntVar(&o.seed, "seed", 1, "seed of the first run; each run has the next one")
	flag.StringVar(&o.only, "role", "",
		"run as this role only, such as admin or nobody; one-host: the API of one host only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apitest:", err)
		os.Exit(1)
	}
}

// run runs schemathesis as each role. It leaves the folder of a run that failed, with the server's log.
func (o options) run(ctx context.Context) (err error) {
	as := slices.DeleteFunc(roles(), func(r role) bool { return o.only != "" && o.only != r.name })
	if len(as) == 0 && o.only != oneHost {
		return fmt.Errorf("-role %q: no such role", o.only)
	}
	if o.schemathesis, err = filepath.Abs(o.schemathesis); err != nil { // it runs in another folder
		return err
	}
	shares := 0
	for _, r := range as {
		shares += r.share
	}
	folder, err := os.MkdirTemp("", "apitest")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(folder)
		} else {
			err = fmt.Errorf("%w\nlogs: %s", err, folder)
		}
	}()
	if o.only == "" || o.only == oneHost {
		fmt.Println("== the API of one host")
		limit := o.time
		if o.only == "" {
			limit /= 5
		}
		if err := o.runOneHost(ctx, folder, limit, o.seed); err != nil || o.only != "" {
			return err
		}
	}
	f, err := startFleet(ctx, o.server, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	var failed []error
	for i, r := range as {
		fmt.Printf("== as %s\n", r.name)
		limit := max(time.Second, o.time*time.Duration(r.share)/time.Duration(shares))
		if err := f.runAs(ctx, o.schemathesis, r, limit, o.seed+i); err != nil {
			failed = append(failed, fmt.Errorf("as %s: %w", r.name, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(failed...)
}

// spare is the name of a host that has no daemon: runs may declare it dead and remove it.
func spare(i int) string { return fmt.Sprintf("spare%d", i) }

func (f *aFleet) path(names ...string) string {
	return filepath.Join(append([]string{f.folder}, names...)...)
}
