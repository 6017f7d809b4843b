package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/cputime"
)

// Options say what to show.
type Options struct {
	Shape lab.Shape // four nodes or more, 1 GiB each
	Out   io.Writer
}

// rounds is how often each VM's bandwidth is measured before and after binding, in turns.
const rounds = 2

// turn is how long one measurement of one vCPU takes.
const turn = time.Second

// show is one run of the demo.
type show struct {
	Options
	steps   *steps
	host    *lab.Host
	counter *labcounter.Counter

	before, after map[string]*figures // by VM
}

// attempts is how often the demo begins: the emulator of the lab fails now and then.
const attempts = 2

// Run plays the demo. The error says which step failed, or which VM is not where it was bound to.
func Run(ctx context.Context, o Options) error {
	for attempt := 1; ; attempt++ {
		d := &show{Options: o, steps: newSteps(o.Out)}
		clock := cputime.Start()
		err := d.inLab(ctx)
		switch {
		case err == nil:
			return conclude(o.Out, d.before, d.after, clock.Others())
		case attempt == attempts || !lab.IsEmulatorFault(err) || ctx.Err() != nil:
			return err
		}
		fmt.Fprintf(o.Out, "\nThe emulator failed, the demo begins again: %v\n", err)
	}
}

func (d *show) inLab(ctx context.Context) (err error) {
	d.steps.next("boot a host: %s", d.Shape.About)
	d.host, err = lab.Boot(ctx, lab.Options{Shape: d.Shape, Libvirt: true, Progress: d.progress})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, d.host.Close()) }()
	if err := d.host.AddGuest(ctx); err != nil {
		return err
	}
	if d.counter, err = d.host.Scope(); err != nil {
		return err
	}
	return d.play(ctx)
}

func (d *show) progress(format string, args ...any) { fmt.Fprintf(d.Out, "  "+format+"\n", args...) }

func (d *show) play(ctx context.Context) (err error) {
	if err := d.say(ctx, "numavisor", "topology", "--picture"); err != nil {
		return err
	}
	d.steps.next("start three VMs by libvirt alone, each with a common mistake")
	if err := d.startMisplaced(ctx); err != nil {
		return err
	}
	d.steps.next("create a VM through Numavisor: placed, bound from its first page, verified")
	if err := d.createControl(ctx); err != nil {
		return err
	}
	d.steps.next("measure all four in turns")
	if d.before, err = d.measure(ctx); err != nil {
		return err
	}
	d.steps.next("bind the misplaced VMs while they run")
	for _, v := range misplaced() {
		if err := d.say(ctx, "numavisor", "bind", v.name); err != nil {
			return err
		}
	}
	d.steps.next("measure all four in turns again")
	if d.after, err = d.measure(ctx); err != nil {
		return err
	}
	d.steps.done()
	return nil
}

func (d *show) startMisplaced(ctx context.Context) error {
	for _, v := range misplaced() {
		fmt.Fprint(d.Out, v.story())
		if err := d.host.StartGuest(ctx, lab.Guest{Name: v.name, Tuning: v.tuning}); err != nil {
			return err
		}
	}
	for _, v := range misplaced() {
		if err := d.host.AwaitGuest(ctx, v.name); err != nil {
			return err
		}
		if v.after == "" {
			continue
		}
		if err := d.quiet(ctx, "sh", "-c", v.after); err != nil {
			return err
		}
	}
	return nil
}

func (d *show) createControl(ctx context.Context) error {
	if err := d.say(ctx, "numavisor", "create", "--name", control, "--vcpus", "2", "--memory", "192M",
		"--kernel", lab.GuestKernel, "--initrd", lab.GuestInitrd, "--append", lab.GuestCommandLine); err != nil {
		return err
	}
	return d.host.AwaitGuest(ctx, control)
}

// names lists the VMs in the order in which they take turns.
func names() []string {
	var all []string
	for _, v := range misplaced() {
		all = append(all, v.name)
	}
	return append(all, control)
}

// measure shows where the VMs are, then lets each work alone, in turns.
func (d *show) measure(ctx context.Context) (map[string]*figures, error) {
	if err := d.say(ctx, "numavisor", "list"); err != nil {
		return nil, err
	}
	all := map[string]*figures{}
	if err := d.truths(ctx, all); err != nil {
		return nil, err
	}
	if err := d.counter.Set(ctx, labcounter.Felt); err != nil {
		return nil, err
	}
	for round := range rounds {
		for _, name := range names() {
			if err := d.counter.Reset(); err != nil {
				return nil, err
			}
			rate, err := d.host.Bandwidth(ctx, name, turn)
			if err != nil {
				return nil, err
			}
			misses, err := d.counter.Read()
			if err != nil {
				return nil, err
			}
			f := all[name]
			f.rates = append(f.rates, rate)
			f.access = append(f.access, accessOf(&d.Shape, &misses))
			d.progress("round %d of %d: %-7s %3.0f %% of its accesses local, %3.0f ns on average",
				round+1, rounds, name, 100*f.access[round].Local, f.access[round].Nanos)
		}
	}
	return all, d.counter.Set(ctx, labcounter.Off)
}

// truths reads where each VM's memory and vCPUs are, from the kernel's own figures.
func (d *show) truths(ctx context.Context, all map[string]*figures) error {
	var out, errOut bytes.Buffer
	status, err := d.host.Run(ctx, []string{"numavisor", "list", "-o", "json"}, &out, &errOut)
	if err == nil && status != 0 {
		err = fmt.Errorf("numavisor list: exit status %d: %s", status, errOut.String())
	}
	var list struct {
		Guests []truth `json:"guests"`
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &list)
	}
	if err != nil {
		return err
	}
	for _, t := range list.Guests {
		all[t.Guest] = &figures{truth: t}
	}
	for _, name := range names() {
		if all[name] == nil {
			return fmt.Errorf("VM %s has ended", name)
		}
	}
	return nil
}

// say shows a command of the lab and what it prints.
func (d *show) say(ctx context.Context, argv ...string) error {
	fmt.Fprintf(d.Out, "lab# %s\n", strings.Join(argv, " "))
	return d.run(ctx, d.Out, argv)
}

// quiet runs a command of the lab and shows only its error.
func (d *show) quiet(ctx context.Context, argv ...string) error {
	var errOut bytes.Buffer
	if err := d.run(ctx, &errOut, argv); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return nil
}

func (d *show) run(ctx context.Context, to io.Writer, argv []string) error {
	const doneInPart = 3 // numavisor's exit status
	status, err := d.host.Run(ctx, argv, to, to)
	if err == nil && status != 0 && status != doneInPart {
		return fmt.Errorf("%s: exit status %d", argv[0], status)
	}
	return err
}
