package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// fault is something that breaks, for a time, and is repaired.
type fault struct {
	name  string
	begin func() error
	end   func() error
}

// draw draws the next fault.
func (f *aFleet) draw(ctx context.Context, random *rand.Rand) fault {
	server, host := random.IntN(len(f.servers)), random.IntN(len(f.hosts))
	other := (server + 1 + random.IntN(max(1, len(f.servers)-1))) % len(f.servers)
	kinds := 6
	if f.net.apart {
		kinds = 10
	}
	done := func(do func()) func() error { return func() error { do(); return nil } }
	stop := func(p *process.Program) fault {
		return fault{"stop " + p.Name, done(func() { p.Signal(unix.SIGSTOP) }), done(func() { p.Signal(unix.SIGCONT) })}
	}
	kill := func(why string, p *process.Program) fault {
		return fault{"kill " + why + p.Name, done(p.Kill), p.Start}
	}
	switch random.IntN(kinds) {
	case 0:
		return kill("", f.servers[server])
	case 1:
		return kill("leader ", f.servers[f.leader()])
	case 2:
		return kill("", f.hosts[host])
	case 3:
		return stop(f.servers[server])
	case 4:
		return stop(f.hosts[host])
	case 5:
		return f.powerOff(ctx, host)
	case 6:
		return fault{fmt.Sprintf("cut s%d", server), func() error { return f.net.cut(server) },
			func() error { return f.net.heal(server) }}
	case 7:
		return fault{fmt.Sprintf("part s%d s%d", server, other), func() error { return f.net.part(server, other) },
			func() error { return f.net.join(server, other) }}
	case 8:
		return fault{fmt.Sprintf("slow s%d", server), func() error { return f.net.slow(server) },
			func() error { return f.net.fast(server) }}
	default:
		return fault{fmt.Sprintf("fill s%d", server), func() error { return f.fill(server) },
			func() error { return os.Remove(f.filler(server)) }}
	}
}

// leader returns the server that has begun to lead last, by the logs.
func (f *aFleet) leader() int {
	at, last := 0, ""
	for i, p := range f.servers {
		text, err := os.ReadFile(p.Log)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "this server leads") && line > last {
				at, last = i, line
			}
		}
	}
	return at
}

func (f *aFleet) filler(i int) string { return filepath.Join(f.data(i), "filler") }

// fill writes to a server's disk until it is full.
func (f *aFleet) fill(i int) error {
	file, err := os.Create(f.filler(i))
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Write(block)
	}
	return file.Close()
}

// powerOff ends a host and its VMs, and declares it dead; then it comes back.
func (f *aFleet) powerOff(ctx context.Context, i int) fault {
	p := f.hosts[i]
	return fault{"power off " + p.Name, func() error {
		p.Kill()
		if err := f.endVMs(p.Name); err != nil {
			return err
		}
		_ = f.retry(ctx, func(c *fleetapi.Client) error { // without a quorum it is not declared dead
			one, cancel := context.WithTimeout(ctx, requestTime)
			defer cancel()
			_, err := c.DeclareDead(one, p.Name, "power off")
			return err
		})
		return nil
	}, p.Start}
}

// endVMs ends the VMs of a host without power.
func (f *aFleet) endVMs(host string) error {
	path := filepath.Join(f.folder, host, "vms.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil //nolint:nilerr // it has had no VM
	}
	vms := map[string]*stored{}
	if err := json.Unmarshal(data, &vms); err != nil {
		return err
	}
	for name, vm := range vms {
		if vm.Running {
			vm.Running = false
			if err := os.Remove(filepath.Join(f.shared, "running", name)); err != nil {
				return err
			}
		}
	}
	if data, err = json.Marshal(vms); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// breakThings makes faults one after the other, sometimes two at once, until ctx ends, and repairs all.
func (f *aFleet) breakThings(ctx context.Context, seed uint64, log func(string)) error {
	random := rand.New(rand.NewPCG(seed, 0))
	pause := func(most time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.Int64N(int64(most)))):
		}
	}
	for ctx.Err() == nil {
		var now []fault
		for len(now) == 0 || len(now) < 2 && random.IntN(3) == 0 {
			next := f.draw(ctx, random)
			if len(now) == 1 && overlap(now[0].name, next.name) {
				break
			}
			log(next.name)
			short, cancel := context.WithTimeout(ctx, requestTime)
			err := next.begin()
			cancel()
			if short.Err() == nil && err != nil {
				return fmt.Errorf("%s: %w", next.name, err)
			}
			now = append(now, next)
			pause(500 * time.Millisecond)
		}
		pause(4 * time.Second)
		for _, n := range now {
			if err := n.end(); err != nil {
				return fmt.Errorf("repair of %s: %w", n.name, err)
			}
		}
		if err := f.allAlive(); err != nil {
			return err
		}
		pause(2 * time.Second)
	}
	return nil
}

// allAlive restarts what has ended, as systemd does: a server ends when its disk is full.
func (f *aFleet) allAlive() error {
	var err error
	for _, p := range append(append([]*process.Program(nil), f.servers...), f.hosts...) {
		err = errors.Join(err, p.Alive())
	}
	return err
}

// overlap reports whether two faults concern the same program.
func overlap(a, b string) bool {
	for word := range strings.FieldsSeq(a) {
		for other := range strings.FieldsSeq(b) {
			if word == other && len(word) == 2 {
				return true
			}
		}
	}
	return false
}
