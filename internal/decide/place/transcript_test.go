package place_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/transcripttest"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestPlace_Transcripts runs the transcripts in testdata. The package's own
// commands:
//
//	distance from=0 to=1 value=30
//	measured        latencies in ns, a row for each node
//	device address=0000:01:00.0 node=1
//	free node=0 memory=4G
//	load name=web cpu=2 wait=0.5, or node=0: as measured, in CPUs
//	place           where a guest of these flags would go, and why
//	create          the same in one line; the guest stays on the host
//	delete name=web
func TestPlace_Transcripts(t *testing.T) {
	transcripttest.Play(t, func(made *transcripttest.World) map[string]transcripttest.Command {
		w := world{made}
		return map[string]transcripttest.Command{
			"distance": w.distance,
			"measured": w.measured,
			"device":   w.device,
			"free":     w.free,
			"load":     w.load,
			"place":    w.place,
			"create":   w.place,
			"delete":   w.delete,
		}
	})
}

type world struct{ *transcripttest.World }

func (w world) distance(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var from, to, value int
	d.ScanArgs(t, "from", &from)
	d.ScanArgs(t, "to", &to)
	d.ScanArgs(t, "value", &value)
	w.Host.Topology.Nodes[from].Distances[topology.NodeID(to)] = value
	w.Host.Topology.Classify()
	return "", nil
}

func (w world) measured(_ *testing.T, d *datadriven.TestData) (string, error) {
	m, err := topology.ParseMeasured(strings.NewReader(d.Input))
	if err != nil {
		return "", err
	}
	return "", w.Host.Topology.Measure(m)
}

func (w world) device(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var address string
	var node int
	d.ScanArgs(t, "address", &address)
	d.ScanArgs(t, "node", &node)
	card := topology.Device{Address: address, Kind: topology.DeviceNIC, Node: topology.NodeID(node)}
	w.Host.Topology.Devices = append(w.Host.Topology.Devices, card)
	return "", nil
}

func (w world) free(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var node int
	var memory string
	d.ScanArgs(t, "node", &node)
	d.ScanArgs(t, "memory", &memory)
	free, err := topology.ParseBytes(memory)
	w.Host.Topology.Nodes[node].Free = free
	return "", err
}

func (w world) load(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var cpus, wait string
	d.ScanArgs(t, "cpu", &cpus)
	d.ScanArgs(t, "wait", &wait)
	cpu, err := strconv.ParseFloat(cpus, 64)
	if err != nil {
		return "", err
	}
	waits, err := strconv.ParseFloat(wait, 64)
	if err != nil {
		return "", err
	}
	if d.HasArg("node") {
		var node int
		d.ScanArgs(t, "node", &node)
		w.Host.Load = append(w.Host.Load, inventory.NodeLoad{Node: topology.NodeID(node), CPU: cpu, Wait: waits})
		return "", nil
	}
	g, err := w.NamedGuest(t, d)
	if err == nil {
		g.Seen.Load = &inventory.GuestLoad{CPU: cpu, Wait: waits}
	}
	return "", err
}

func (w world) delete(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	gone, err := w.NamedGuest(t, d)
	if err != nil {
		return "", err
	}
	w.Host.Guests = slices.DeleteFunc(w.Host.Guests, func(g inventory.Guest) bool { return g.Name == gone.Name })
	return "", nil
}

func (w world) place(_ *testing.T, d *datadriven.TestData) (string, error) {
	spec, err := specOf(d.Input)
	if err != nil {
		return "", err
	}
	placed, why, err := place.Place(place.Request{Host: &w.Host, Spec: spec, Policy: w.Policy})
	if noFit := (*place.NoFitError)(nil); errors.As(err, &noFit) {
		return noFit.Text(), nil
	}
	if err != nil {
		return "", err
	}
	if d.Cmd == "create" {
		w.Host.Guests = append(w.Host.Guests, inventory.Guest{
			Name: spec.Name, State: "running", Managed: true, Spec: &spec, Placement: &placed,
			Config: inventory.Config{VCPUs: spec.VCPUs, Memory: spec.Memory, PageSize: spec.PageSize},
		})
		return why.Summary + "\n", nil
	}
	return why.Summary + "\n" + layout(&placed) + reasons(&why), nil
}

// specOf parses flags in the form of the command line.
func specOf(text string) (guest.Spec, error) {
	fs := pflag.NewFlagSet("guest", pflag.ContinueOnError)
	flags := guest.BindFlags(fs)
	if err := fs.Parse(strings.Fields(text)); err != nil {
		return guest.Spec{}, err
	}
	spec, err := flags.Apply(guest.Spec{})
	if err != nil {
		return guest.Spec{}, err
	}
	return spec.Normalize()
}

// layout gives the location of each cell and of the helper threads.
func layout(p *guest.Placement) string {
	var b strings.Builder
	for _, c := range p.Cells {
		nodes := "node"
		if c.Nodes.Len() > 1 {
			nodes = "nodes"
		}
		fmt.Fprintf(&b, "  cell %d: memory %v on %s %v", c.ID, c.Memory, nodes, c.Nodes)
		if len(c.Distances) > 0 {
			fmt.Fprintf(&b, ", distances %v", c.Distances)
		}
		b.WriteByte('\n')
		last := topology.CPUSet{}
		var ids []guest.VCPUID
		flush := func() {
			if len(ids) > 0 {
				fmt.Fprintf(&b, "    vCPUs %v on CPUs %v\n", topology.SetOf(ids...), last)
			}
		}
		for _, v := range p.VCPUs {
			if !c.VCPUs.Contains(v.ID) {
				continue
			}
			if !v.CPUs.Equal(last) {
				flush()
				ids, last = nil, v.CPUs
			}
			ids = append(ids, v.ID)
		}
		flush()
	}
	if own := p.Exclusive(); !own.IsEmpty() {
		fmt.Fprintf(&b, "  exclusive CPUs %v\n", own)
	}
	if !p.Emulator.IsEmpty() {
		fmt.Fprintf(&b, "  emulator on CPUs %v\n", p.Emulator)
	}
	return b.String()
}

// reasons is the explanation without the summary and the length of the search.
func reasons(w *place.Why) string {
	lines := strings.SplitAfter(w.Text(), "\n")[1:]
	for i, l := range lines {
		if strings.HasPrefix(l, "  search: ") {
			lines[i] = ""
		}
	}
	if !w.Optimal {
		lines = append(lines, "  not proven optimal\n")
	}
	return strings.Join(lines, "")
}
