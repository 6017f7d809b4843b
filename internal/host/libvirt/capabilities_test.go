package libvirt

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

func capabilitiesOf(t *testing.T, text string) topology.Topology {
	t.Helper()
	topo, err := ParseCapabilities(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := topo.Validate(); err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestParseCapabilitiesOfCapturedHosts(t *testing.T) {
	for _, host := range topologytest.Hosts(t, "capabilities.xml") {
		t.Run(host, func(t *testing.T) {
			topo := capabilitiesOf(t, string(topologytest.File(t, host, "capabilities.xml")))
			topologytest.Expect(t, host, "capabilities", topo)
		})
	}
}

// Sparse cells, an offline CPU, memory without CPUs, an HMAT, an L3 bank.
const sparseCapabilities = `<capabilities><host><topology><cells num='2'>
<cell id='0'><memory unit='KiB'>1048576</memory><pages unit='KiB' size='4'>262144</pages><pages unit='KiB' size='2048'>7</pages>
<distances><sibling id='0' value='10'/><sibling id='8' value='24'/></distances>
<cpus num='3'><cpu id='0' socket_id='0' die_id='0' core_id='0' siblings='0-1'/><cpu id='1' socket_id='0' die_id='0' core_id='0' siblings='0-1'/><cpu id='2'/></cpus></cell>
<cell id='8'><memory unit='GiB'>2</memory><distances><sibling id='0' value='255'/><sibling id='8' value='10'/></distances><cpus num='0'/></cell>
</cells><interconnects><latency initiator='0' target='0' type='access' value='80'/><latency initiator='0' target='8' type='access' value='250'/>
<latency initiator='0' target='8' cache='1' type='access' value='9'/>
<bandwidth initiator='0' target='0' type='access' value='204800' unit='KiB'/></interconnects></topology>
<cache><bank id='0' level='3' type='both' size='8' unit='MiB' cpus='0-2'/></cache></host></capabilities>`

func TestParseCapabilitiesOfSparseHost(t *testing.T) {
	topo := capabilitiesOf(t, sparseCapabilities)
	near, far := topo.Nodes[0], topo.Nodes[1]
	if near.ID != 0 || near.CPUs.String() != "0-1" || near.Memory != topology.GiB || len(near.HugePages) != 1 ||
		near.HugePages[0].Total != 7 {
		t.Errorf("node 0: %+v", near)
	}
	if far.ID != 8 || !far.CPUs.IsEmpty() || far.Memory != 2*topology.GiB || near.Classes[8] != topology.Remote {
		t.Errorf("node 8: %+v, class %s", far, near.Classes[8])
	}
	if topo.Offline.String() != "2" || topo.CPUs[1].L3 != 0 || topo.CPUs[1].Core != 0 {
		t.Errorf("offline %q, CPU 1: %+v", topo.Offline, topo.CPUs[1])
	}
	if v, ok := topo.Latency(0, 8); v != 250 || !ok {
		t.Errorf("latency to node 8: %v, %v", v, ok)
	}
	if _, ok := topo.Bandwidth(0, 0); ok {
		t.Error("a bandwidth matrix with gaps is accepted")
	}
}

func TestParseCapabilities_SkipsBadValues(t *testing.T) {
	for old, c := range map[string][2]string{
		"<memory unit='KiB'>1048576":              {"<memory unit='KiB'>much", "cell 0: memory"},
		"<memory unit='GiB'>2":                    {"<memory unit='bushels'>2", "cell 8: memory"},
		"<cell id='8'>":                           {"<cell id='eight'>", "cell id"},
		"size='2048'>7":                           {"size='2048'>-7", "cell 0: cannot parse \"-7\" pages"},
		"<cpu id='2'/>":                           {"<cpu id='-2'/>", "cpu id"},
		"core_id='0' siblings='0-1'/><cpu id='1'": {"core_id='x' siblings='1-0'/><cpu id='1'", "cpu siblings"},
		"cpus='0-2'":                              {"cpus='0-'", "host/cache/bank/cpus"},
		"<sibling id='8' value='24'/>":            {"", "node 0: no distance to nodes 8"},
		"value='24'":                              {"value='far'", "distances/sibling value"},
	} {
		text := strings.Replace(sparseCapabilities, old, c[0], 1)
		if text == sparseCapabilities {
			t.Fatalf("%q is not in the document", old)
		}
		topo := capabilitiesOf(t, text)
		if !strings.Contains(strings.Join(topo.Gaps, "\n"), c[1]) {
			t.Errorf("%q: gaps %q; want %q", c[0], topo.Gaps, c[1])
		}
	}
}

func TestParseCapabilitiesRefuses(t *testing.T) {
	cells := "<capabilities><host><topology><cells>" + strings.Repeat("<cell id='1'/>",
		1025) + "</cells></topology></host></capabilities>"
	for text, want := range map[string]string{
		"": "virsh capabilities", "{}": "virsh capabilities", "<domain/>": "expected element type <capabilities>",
		"<capabilities><host/></capabilities>": "no host/topology/cells", cells: "1025 cells",
		"<capabilities><host><topology><cells><cell id='0'/></cells></topology></host></capabilities>": "no host/topology/cells with CPUs",
	} {
		if topo, err := ParseCapabilities(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %d nodes, %v; want an error with %q", text, len(topo.Nodes), err, want)
		}
	}
}

func FuzzParseCapabilities(f *testing.F) {
	f.Add([]byte(sparseCapabilities))
	f.Add(
		[]byte(
			"<capabilities><host><topology><cells><cell id='3'><cpus><cpu " +
				"id='7'/></cpus></cell></cells></topology></host></capabilities>",
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := ParseCapabilities(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := topo.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
