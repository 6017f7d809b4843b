package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

func labDemoCommand() *cobra.Command {
	var shape string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job: VMs misplaced, placed, and bound while they run",
		Long: `Boots a NUMA host in which far memory is slow, starts three VMs by libvirt
alone in ways that are common and go wrong, shows where they lie and what memory
bandwidth a program inside them gets; creates three through Numavisor; binds the
misplaced ones while they run; and prints before and after.`,
		Example: `  numavisor lab demo
  numavisor lab demo --shape genoa-cxl`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := lab.FindShape(shape)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return demo(ctx, c, s)
		},
	}
	c.Flags().StringVar(&shape, "shape", "square4", "a built-in shape or a file; needs four nodes or more with 1G each")
	timeLimitFlag(c.Flags(), &timeout, "give up after this time")
	return c
}

// show is one run of the demo.
type show struct {
	host  *lab.Host
	scope *labcounter.Counter
	out   io.Writer
}

// measured is a guest's truth and what a program inside it measured.
type measured struct {
	operate.Truth
	Bandwidth float64 // MB/s
}

func demo(ctx context.Context, c *cobra.Command, shape lab.Shape) (err error) {
	h, err := lab.Boot(ctx, lab.Options{Shape: shape, Libvirt: true, Progress: progressLines(c.ErrOrStderr())})
	if err != nil {
		return err
	}
	defer func() {
		if closed := h.Close(); err == nil {
			err = closed
		}
	}()
	if err := h.AddGuest(ctx); err != nil {
		return err
	}
	scope, err := h.Scope()
	if err != nil {
		return err
	}
	d := &show{host: h, scope: scope, out: c.OutOrStdout()}
	return d.play(ctx)
}

// wild are VMs as one finds them: each with the mistake that its story tells.
var wild = []struct{ name, story, tuning, after string }{
	{"wild1", "nothing said: memory and vCPUs go where they happen to", "", ""},
	{"wild2", "vCPUs pinned by hand to node 3, memory bound to node 0 by a numatune copied from another VM",
		"<cputune><vcpupin vcpu='0' cpuset='6-7'/><vcpupin vcpu='1' cpuset='6-7'/></cputune><numatune><memory " +
			"mode='strict' nodeset='0'/></numatune>", ""},
	{"wild3", "bound to node 1 and later pinned to node 2 by hand: the memory does not follow",
		"<cputune><vcpupin vcpu='0' cpuset='2-3'/><vcpupin vcpu='1' cpuset='2-3'/><emulatorpin " +
			"cpuset='2-3'/></cputune><numatune><memory mode='preferred' nodeset='1'/></numatune>",
		"virsh -q vcpupin wild3 0 4-5; virsh -q vcpupin wild3 1 4-5; virsh -q emulatorpin wild3 4-5"},
}

func (d *show) play(ctx context.Context) error {
	d.title("The host: %s", d.host.Shape.About)
	if err := d.say(ctx, "numavisor", "topology"); err != nil {
		return err
	}
	d.title("Three VMs by libvirt alone")
	before, err := d.startWild(ctx)
	if err != nil {
		return err
	}
	d.title("Three VMs through Numavisor: placed, bound from their first page, verified")
	created, err := d.createTame(ctx)
	if err != nil {
		return err
	}
	d.title("The misplaced ones, bound while they run")
	var names []string
	for _, w := range wild {
		names = append(names, w.name)
		if err := d.say(ctx, "numavisor", "bind", w.name); err != nil {
			return err
		}
	}
	after, err := d.measure(ctx, names)
	if err != nil {
		return err
	}
	return d.conclude(before, created, after)
}

func (d *show) startWild(ctx context.Context) ([]measured, error) {
	var names []string
	for _, w := range wild {
		fmt.Fprintf(d.out, "%s: %s\n", w.name, w.story)
		xml := fmt.Sprintf(`<domain type='kvm'><name>%s</name><memory unit='MiB'>192</memory><vcpu>2</vcpu>%s
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os><features><acpi/></features>
<cpu mode='host-passthrough'/><devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
			w.name, w.tuning, lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine)
		if err := d.say(ctx, "sh", "-c", "cat > /tmp/"+w.name+".xml <<'X'\n"+xml+"\nX\nvirsh -q create "+
			"/tmp/"+w.name+".xml"); err != nil {
			return nil, err
		}
		names = append(names, w.name)
	}
	for _, w := range wild {
		if err := d.host.AwaitGuest(ctx, w.name); err != nil {
			return nil, err
		}
		if w.after != "" {
			if err := d.say(ctx, "sh", "-c", w.after); err != nil {
				return nil, err
			}
		}
	}
	return d.measure(ctx, names)
}

// createTame creates, measures and deletes: so that those bound later have the host's room.
func (d *show) createTame(ctx context.Context) ([]measured, error) {
	names := []string{"tame1", "tame2", "tame3"}
	for _, name := range names {
		if err := d.say(ctx, "numavisor", "create", "--name", name, "--vcpus", "1", "--memory", "192M",
			"--kernel", lab.GuestKernel, "--initrd", lab.GuestInitrd, "--append", lab.GuestCommandLine); err != nil {
			return nil, err
		}
	}
	created, err := d.measure(ctx, names)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := d.say(ctx, "numavisor", "delete", name); err != nil {
			return nil, err
		}
	}
	return created, nil
}

// measure waits until the guests have filled their memory, asks each for its
// bandwidth with distance felt, and shows where it lies.
func (d *show) measure(ctx context.Context, names []string) ([]measured, error) {
	for _, name := range names {
		if err := d.host.AwaitGuest(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := d.say(ctx, "numavisor", "list"); err != nil {
		return nil, err
	}
	var list guestList
	if err := d.decode(ctx, &list, "numavisor", "list", "-o", "json"); err != nil {
		return nil, err
	}
	if err := d.scope.Set(ctx, labcounter.Felt); err != nil {
		return nil, err
	}
	var all []measured
	for _, name := range names {
		rate, err := d.host.Bandwidth(ctx, name, 2*time.Second)
		if err != nil {
			return nil, err
		}
		for _, t := range list.Guests {
			if t.Guest == name {
				all = append(all, measured{t, rate})
			}
		}
	}
	return all, d.scope.Set(ctx, labcounter.Off)
}

func (d *show) conclude(before, created, after []measured) error {
	d.title("Before and after, from the kernel's figures; bandwidth as a program inside each VM measures it")
	t := &topology.Topology{}
	for i := range d.host.Shape.Nodes {
		t.Nodes = append(t.Nodes, topology.Node{ID: topology.NodeID(i)})
	}
	rows := [][]string{{"VM", "", "MEMORY BY NODE", "VCPUS ON NODE", "LOCAL", "ON INTENDED NODES", "BANDWIDTH", "GAIN"}}
	for i, a := range after {
		b := before[i]
		rows = append(rows, demoRow(t, b, "by libvirt alone", ""),
			demoRow(t, a, "bound while running", fmt.Sprintf("%+.0f %%", 100*(a.Bandwidth/b.Bandwidth-1))))
	}
	for _, m := range created {
		rows = append(rows, demoRow(t, m, "created by Numavisor", ""))
	}
	columns(d.out, rows)
	fmt.Fprintln(d.out)
	for _, m := range append(after, created...) {
		if m.MemoryOnIntended == nil || *m.MemoryOnIntended < 0.98 || m.VCPUsOnIntended == nil ||
			*m.VCPUsOnIntended < 1 {
			return fmt.Errorf("VM %s is not where it was put: %s", m.Guest, m.Verdict())
		}
	}
	fmt.Fprintln(d.out, "Every bound VM has 100 % of its vCPUs and at least 98 % of its memory on the intended nodes.")
	return nil
}

func demoRow(t *topology.Topology, m measured, how, gain string) []string {
	intended := "-"
	if m.MemoryOnIntended != nil && m.VCPUsOnIntended != nil {
		intended = fmt.Sprintf("%s of memory, %.0f %% of vCPUs", text.Percent(*m.MemoryOnIntended),
			100**m.VCPUsOnIntended)
	}
	return []string{
		m.Guest,
		how,
		m.MemoryByNode.String(),
		spreadText(t, m.Truth),
		shareText(m.LocalShare),
		intended,
		fmt.Sprintf("%.0f MB/s", m.Bandwidth),
		gain,
	}
}

func (d *show) title(format string, args ...any) {
	fmt.Fprintf(d.out, "\n== "+format+"\n\n", args...)
}

// say shows a command of the lab and what it prints.
func (d *show) say(ctx context.Context, argv ...string) error {
	shown, _, multiline := strings.Cut(strings.Join(argv, " "), "\n")
	if multiline {
		shown = argv[len(argv)-1][strings.LastIndex(argv[len(argv)-1], "\n")+1:]
	}
	fmt.Fprintf(d.out, "lab# %s\n", shown)
	status, err := d.host.Run(ctx, argv, d.out, d.out)
	if err == nil && status != 0 && status != exitPartial {
		err = fmt.Errorf("%s: exit status %d", shown, status)
	}
	fmt.Fprintln(d.out)
	return err
}

// decode runs a command of the lab and reads the JSON that it prints.
func (d *show) decode(ctx context.Context, v any, argv ...string) error {
	var out, errOut bytes.Buffer
	status, err := d.host.Run(ctx, argv, &out, &errOut)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: exit status %d: %s", strings.Join(argv, " "), status, errOut.String())
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), v)
	}
	return err
}
