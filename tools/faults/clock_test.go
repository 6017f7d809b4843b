package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// A server asks its etcd in vain while its clock is ahead. Once both are right again, it reads with the assurance of a
// quorum, and does not wait until the time that its clock showed then.
func TestClock_SetBackAfterAReadInVain(t *testing.T) {
	if !process.CanShift {
		t.Skip("clocks are set on amd64 only")
	}
	folder := t.TempDir()
	f := &aFleet{folder: folder, net: network{base: 18100 + 50*(250+os.Getpid()%50)}}
	defer f.end()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := f.make(ctx, size{servers: 1, members: 1, serverPath: build(t)}); err != nil {
		t.Fatal(err)
	}
	server, member := f.servers[0], f.members[0]
	// A refusal is given only by records that are known to be current.
	current := func(ctx context.Context) error {
		_, err := f.clients[0].DeleteVM(ctx, "none", fleetapi.Change{})
		if p, ok := errors.AsType[*fleetapi.Problem](err); ok && p.Type == fleetapi.ProblemNotFound {
			return nil
		}
		return err
	}
	if err := f.retry(ctx, func(*fleetapi.Client) error { return current(ctx) }); err != nil {
		t.Fatal(err)
	}
	if err := server.Shift(40 * day); err != nil {
		t.Fatal(err)
	}
	member.Kill()
	if err := current(ctx); err == nil {
		t.Fatal("the server refuses although its etcd does not run")
	}
	if err := errors.Join(server.Shift(0), member.Start()); err != nil {
		t.Fatal(err)
	}
	short, end := context.WithTimeout(ctx, 30*time.Second)
	defer end()
	if err := f.retry(short, func(*fleetapi.Client) error { return current(short) }); err != nil {
		log, _ := os.ReadFile(filepath.Join(folder, "s0.log"))
		t.Errorf("the server does not read its records again: %v\n%s", err, log[max(0, len(log)-2000):])
	}
}
