package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/numavisor/numavisor/tools/process"
)

const day = 24 * time.Hour

// jumps are by how much a clock is wrong: with the longer ones, certificates have expired or are not valid yet.
func jumps() []time.Duration {
	return []time.Duration{30 * time.Second, 10 * time.Minute, 3 * time.Hour, 40 * day, 70 * day, 400 * day}
}

// clockOf draws a program and how wrong its clock is.
func (f *aFleet) clockOf(random *rand.Rand, what string) (fault, *process.Program, time.Duration) {
	p, by := one(random, slices.Concat(f.servers, f.servers, f.members, f.hosts)), one(random, jumps())
	side := "ahead"
	if random.IntN(2) == 0 {
		side = "behind"
	}
	name := fmt.Sprintf("%s %s %v %s", what, p.Name, by, side)
	if side == "behind" {
		by = -by
	}
	return fault{name: name, end: func() error { return p.Shift(0) }}, p, by
}

// clockJumps sets the clock of a running program, and sets it right.
func (f *aFleet) clockJumps(_ context.Context, random *rand.Rand) fault {
	fault, p, by := f.clockOf(random, "clock")
	fault.begin = func() error { return p.Shift(by) }
	return fault
}

// startWithWrongClock starts a program with a clock that is set right later. What it does in its first milliseconds, it
// may do by the right clock.
func (f *aFleet) startWithWrongClock(_ context.Context, random *rand.Rand) fault {
	fault, p, by := f.clockOf(random, "start")
	fault.begin = func() error {
		p.Kill()
		if err := p.Start(); err != nil {
			return err
		}
		err := started(p)
		for range 100 {
			if err == nil {
				err = p.Shift(by)
			}
			if err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return err
	}
	return fault
}

// started waits until ip has replaced itself by the program that it runs in a network namespace.
func started(p *process.Program) error {
	for range 2000 {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
		if err != nil || len(line) > 0 && !bytes.HasPrefix(line, []byte("ip\x00")) {
			return err
		}
		time.Sleep(500 * time.Microsecond)
	}
	return fmt.Errorf("ip does not run %s", p.Name)
}
