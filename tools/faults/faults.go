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
	// during checks, while it lasts, what must work all the same; nil: nothing.
	during func(context.Context) error
	end    func() error
}

// kind is a kind of fault: of it, draw draws one.
type kind func(ctx context.Context, random *rand.Rand) fault

// kinds are those that can be made here.
func (f *aFleet) kinds() []kind {
	kinds := []kind{f.killPlace, f.killPlace, f.killLeader, f.killHost, f.stopPlace, f.stopHost, f.powerOff, f.quorum,
		f.clog, f.libvirtdRestarts, f.libvirtdRestarts}
	if process.CanShift {
		kinds = append(kinds, f.clockJumps, f.clockJumps, f.startWithWrongClock)
	}
	if f.net.apart {
		kinds = append(kinds, f.cut, f.part, f.part, f.slow, f.mute, f.deafen, f.fillDisk)
	}
	return kinds
}

// draw draws the next fault; its name begins with f.only.
func (f *aFleet) draw(ctx context.Context, random *rand.Rand) fault {
	for kinds := f.kinds(); ; {
		if next := one(random, kinds)(ctx, random); strings.HasPrefix(next.name, f.only) {
			return next
		}
	}
}

func one[T any](random *rand.Rand, of []T) T { return of[random.IntN(len(of))] }

func kill(why string, p *process.Program) fault {
	return fault{name: "kill " + why + p.Name, begin: func() error { p.Kill(); return nil }, end: p.Start}
}

func (f *aFleet) killPlace(_ context.Context, random *rand.Rand) fault {
	return kill("", one(random, f.places()))
}
func (f *aFleet) killHost(_ context.Context, random *rand.Rand) fault {
	return kill("", one(random, f.hosts))
}
func (f *aFleet) killLeader(context.Context, *rand.Rand) fault {
	return kill("leader ", f.servers[f.leader()])
}

func stop(p *process.Program) fault {
	return fault{name: "stop " + p.Name, begin: func() error { p.Signal(unix.SIGSTOP); return nil },
		end: func() error { p.Signal(unix.SIGCONT); return nil }}
}

func (f *aFleet) stopPlace(_ context.Context, random *rand.Rand) fault {
	return stop(one(random, f.places()))
}
func (f *aFleet) stopHost(_ context.Context, random *rand.Rand) fault {
	return stop(one(random, f.hosts))
}

func (f *aFleet) libvirtdRestarts(_ context.Context, random *rand.Rand) fault {
	return f.libvirtd(one(random, f.hosts), one(random, []libvirtd{libvirtdDown, libvirtdFlaky}))
}

// atPlace is a fault of the network or the disk of one place.
func (f *aFleet) atPlace(random *rand.Rand, name string, begin, end func(place int) error) fault {
	i := random.IntN(len(f.places()))
	return fault{name: name + " " + f.places()[i].Name, begin: func() error { return begin(i) },
		end: func() error { return end(i) }}
}

func (f *aFleet) cut(_ context.Context, random *rand.Rand) fault {
	return f.atPlace(random, "cut", f.net.cut, f.net.heal)
}

func (f *aFleet) slow(_ context.Context, random *rand.Rand) fault {
	return f.atPlace(random, "slow", f.net.slow, f.net.fast)
}

func (f *aFleet) mute(_ context.Context, random *rand.Rand) fault {
	return f.atPlace(random, "mute", f.net.mute, f.net.speak)
}

func (f *aFleet) deafen(_ context.Context, random *rand.Rand) fault {
	return f.atPlace(random, "deafen", f.net.deafen, f.net.hear)
}

func (f *aFleet) fillDisk(_ context.Context, random *rand.Rand) fault {
	return f.atPlace(random, "fill", f.fill, func(i int) error { return os.Remove(f.filler(i)) })
}

func (f *aFleet) part(_ context.Context, random *rand.Rand) fault {
	places := f.places()
	a := random.IntN(len(places))
	b := (a + 1 + random.IntN(len(places)-1)) % len(places)
	return fault{name: fmt.Sprintf("part %s %s", places[a].Name, places[b].Name),
		begin: func() error { return f.net.part(a, b) }, end: func() error { return f.net.join(a, b) }}
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

func (f *aFleet) filler(place int) string {
	return filepath.Join(f.data(f.places()[place].Name), "filler")
}

// fill writes to the disk of a place until it is full.
func (f *aFleet) fill(place int) error {
	file, err := os.Create(f.filler(place))
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
func (f *aFleet) powerOff(ctx context.Context, random *rand.Rand) fault {
	p := one(random, f.hosts)
	libvirtd := f.libvirtd(p, libvirtdDown) // nothing comes to it any more
	end := func() error { return errors.Join(libvirtd.end(), p.Start()) }
	return fault{name: "power off " + p.Name, end: end, begin: func() error {
		p.Kill()
		if err := errors.Join(libvirtd.begin(), f.endVMs(p.Name)); err != nil {
			return err
		}
		_ = f.retry(ctx, func(c *fleetapi.Client) error { // without a quorum it is not declared dead
			one, cancel := context.WithTimeout(ctx, requestTime)
			defer cancel()
			_, err := c.DeclareDead(one, p.Name, "power off")
			return err
		})
		return nil
	}}
}

// endVMs ends the VMs of a host without power.
func (f *aFleet) endVMs(host string) error {
	vms, err := f.vmsOf(host)
	if err != nil {
		return err
	}
	for name, vm := range vms {
		if !vm.Running {
			continue
		}
		if err := endPaused(f.shared, host, name); err != nil {
			return err
		}
		mark := filepath.Join(f.shared, "running", name)
		of, err := os.ReadFile(mark)
		if err == nil && string(of) != host {
			delete(vms, name) // it had migrated
			continue
		}
		if err := errors.Join(err, os.Remove(mark)); err != nil {
			return err
		}
		vm.Running = false
	}
	if err := f.endArrived(host, vms); err != nil {
		return err
	}
	data, err := json.Marshal(vms)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.folder, host, "vms.json"), data, 0o600)
}

// breakThings makes faults one after the other, sometimes two at once, until ctx ends, and repairs all before life
// ends.
func (f *aFleet) breakThings(ctx, life context.Context, seed uint64, log func(string)) error {
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
			if err != nil {
				next.during = nil // it has not begun: a server may still end after its disk was full
			}
			now = append(now, next)
			pause(500 * time.Millisecond)
		}
		pause(4 * time.Second)
		if check := now[0].during; check != nil && len(now) == 1 { // two faults together may break what one must not
			if err := check(life); err != nil {
				return fmt.Errorf("during %s: %w", now[0].name, err)
			}
		}
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
	for _, p := range f.all() {
		err = errors.Join(err, p.Alive())
	}
	return err
}

// stayAlive restarts what ends after the last fault was repaired, until all requests are served: a server whose disk
// was full takes seconds to end.
func (f *aFleet) stayAlive(served <-chan struct{}) error {
	for {
		select {
		case <-served:
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		if err := f.allAlive(); err != nil {
			return err
		}
	}
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
