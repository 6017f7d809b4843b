package place_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestPlace_Transcripts plays the conversations in testdata. Each host is one
// line of topology.Synthetic. To accept new answers:
//
//	go test ./internal/decide/place -run Transcripts -rewrite
//
// Commands:
//
//	host            makes a host; the guests before it are gone
//	distance from=0 to=1 value=30
//	measured        latencies in ns, a row for each node
//	device address=0000:01:00.0 node=1
//	free node=0 memory=4G
//	policy          YAML
//	place           where a guest of these flags would go, and why
//	create          the same in one line; the guest stays on the host
//	delete name=web
func TestPlace_Transcripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var w world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			text, err := w.do(t, d)
			if err != nil {
				return err.Error() + "\n"
			}
			return text
		})
	})
}

type world struct {
	host   inventory.Host
	policy policy.Policy
}

func (w *world) do(t *testing.T, d *datadriven.TestData) (string, error) {
	topo := &w.host.Topology
	switch d.Cmd {
	case "host":
		made, err := topology.Synthetic(d.Input)
		*w = world{host: inventory.Host{Name: "host", Topology: made}}
		return "", err
	case "distance":
		var from, to, value int
		d.ScanArgs(t, "from", &from)
		d.ScanArgs(t, "to", &to)
		d.ScanArgs(t, "value", &value)
		topo.Nodes[from].Distances[topology.NodeID(to)] = value
		topo.Classify()
		return "", nil
	case "measured":
		m, err := topology.ParseMeasured(strings.NewReader(d.Input))
		if err != nil {
			return "", err
		}
		return "", topo.Measure(m)
	case "device":
		var address string
		var node int
		d.ScanArgs(t, "address", &address)
		d.ScanArgs(t, "node", &node)
		card := topology.Device{Address: address, Kind: topology.DeviceNIC, Node: topology.NodeID(node)}
		topo.Devices = append(topo.Devices, card)
		return "", nil
	case "free":
		var node int
		var memory string
		d.ScanArgs(t, "node", &node)
		d.ScanArgs(t, "memory", &memory)
		free, err := topology.ParseBytes(memory)
		topo.Nodes[node].Free = free
		return "", err
	case "policy":
		w.policy = policy.Policy{}
		return "", yaml.UnmarshalStrict([]byte(d.Input), &w.policy)
	case "delete":
		var name string
		d.ScanArgs(t, "name", &name)
		for i, g := range w.host.Guests {
			if g.Name == name {
				w.host.Guests = append(w.host.Guests[:i], w.host.Guests[i+1:]...)
				return "", nil
			}
		}
		return "", fmt.Errorf("no guest %s", name)
	case "place", "create":
		return w.place(d)
	}
	return "", fmt.Errorf("unknown command %s", d.Cmd)
}

func (w *world) place(d *datadriven.TestData) (string, error) {
	spec, err := specOf(d.Input)
	if err != nil {
		return "", err
	}
	placed, why, err := place.Place(place.Request{Host: &w.host, Spec: spec, Policy: w.policy})
	if noFit := (*place.NoFit)(nil); errors.As(err, &noFit) {
		return noFit.Text(), nil
	}
	if err != nil {
		return "", err
	}
	if d.Cmd == "create" {
		w.host.Guests = append(w.host.Guests, inventory.Guest{
			Name: spec.Name, State: "running", Managed: true, Spec: &spec, Placement: &placed,
			Config: inventory.Config{VCPUs: spec.VCPUs, Memory: spec.Memory, PageSize: spec.PageSize},
		})
		return why.Summary + "\n", nil
	}
	return why.Summary + "\n" + layout(&placed) + reasons(&why), nil
}

// specOf reads flags as the command line has them.
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

// layout shows where each cell and the helper threads are.
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
		if strings.HasPrefix(l, "  searched: ") {
			lines[i] = ""
		}
	}
	if !w.Optimal {
		lines = append(lines, "  not proven best\n")
	}
	return strings.Join(lines, "")
}
