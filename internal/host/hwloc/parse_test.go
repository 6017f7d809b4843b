package hwloc

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

func TestParseCapturedHosts(t *testing.T) {
	for _, version := range []string{"hwloc1.xml", "hwloc2.xml"} {
		for _, host := range topologytest.Hosts(t, version) {
			t.Run(version+"/"+host, func(t *testing.T) {
				topo := parse(t, string(topologytest.File(t, host, version)))
				topologytest.Expect(t, host, strings.TrimSuffix(version, ".xml"), topo)
			})
		}
	}
}

func parse(t *testing.T, text string) topology.Topology {
	t.Helper()
	topo, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := topo.Validate(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// Version 2 gives a CXL node the CPUs of the node that it is attached to.
const cxl = `<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x7">
<object type="NUMANode" os_index="2" cpuset="0x3" local_memory="4096"/>
<object type="Package" os_index="0" cpuset="0x1">
 <object type="NUMANode" os_index="0" cpuset="0x1" local_memory="1073741824"><page_type size="4096" count="262144"/><page_type size="2097152" count="7"/></object>
 <object type="Core" cpuset="0x1"><object type="PU" os_index="0" cpuset="0x1"/></object>
 <object type="PCIDev" pci_busid="0000:3b:00.0" pci_type="0200 [8086:10c9] [8086:0000] 01"><object type="OSDev" name="eth0"/></object></object>
<object type="Package" os_index="1" cpuset="0x2">
 <object type="NUMANode" os_index="1" cpuset="0x2" local_memory="1073741824"/>
 <object type="Core" cpuset="0x2"><object type="PU" os_index="1" cpuset="0x2"/></object></object>
<object type="Bridge"><object type="PCIDev" pci_busid="0000:00:1f.2" pci_type="0106 [8086:0000] [0000:0000] 00"/></object></object>
<distances2 type="NUMANode" nbobjs="3" kind="5" name="NUMALatency" indexing="os"><indexes length="6">2 0 1 </indexes>
<u64values length="9">10 255 255 24 </u64values><u64values length="9">10 21 24 21 10 </u64values></distances2></topology>`

func TestParseMemoryWithoutCPUs(t *testing.T) {
	topo := parse(t, cxl)
	for id, want := range map[topology.NodeID]string{0: "0", 1: "1", 2: ""} {
		if n, ok := topo.Node(id); !ok || n.CPUs.String() != want {
			t.Errorf("node %d: CPUs %q, want %q", id, n.CPUs, want)
		}
	}
	if n := topo.Nodes[0]; n.Distances[2] != 24 || n.Distances[1] != 21 || topo.Nodes[2].Distances[0] != 255 ||
		n.HugePages[0].Total != 7 ||
		len(n.HugePages) != 1 {
		t.Errorf("node 0: %+v, node 2: %+v", n, topo.Nodes[2])
	}
	if topo.Offline.String() != "2" {
		t.Errorf("offline %q", topo.Offline)
	}
	if d := topo.Devices; len(d) != 2 || d[0].Kind != topology.DeviceStorage || d[0].Node != topology.NoNode ||
		d[1].Kind != topology.DeviceNIC || d[1].Node != 0 || d[1].Names[0] != "eth0" {
		t.Errorf("devices %+v", d)
	}
	if !strings.Contains(strings.Join(topo.Gaps, "\n"), "node 2 is treated as memory without CPUs") {
		t.Errorf("gaps %q", topo.Gaps)
	}
}

func TestParseVersion1(t *testing.T) {
	const uma = `<topology><object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xff" online_cpuset="0x7" local_memory="1024"><page_type size="4096" count="1"/>
<object type="Socket" os_index="0" cpuset="0xf"><object type="Cache" depth="3" cpuset="0xf"><object type="Core" cpuset="0x3"><object type="PU" os_index="0" cpuset="0x1"/><object type="PU" os_index="1" cpuset="0x2"/></object>
<object type="Core" cpuset="0xc"><object type="PU" os_index="2" cpuset="0x4"/><object type="PU" os_index="3" cpuset="0x8"/></object></object></object></object></topology>`
	topo := parse(t, uma)
	if len(topo.Nodes) != 1 || topo.Nodes[0].CPUs.String() != "0-2" || topo.Nodes[0].Memory != 1024 ||
		topo.Offline.String() != "3-7" {
		t.Errorf("nodes %+v, offline %q", topo.Nodes, topo.Offline)
	}
	if c := topo.CPUs[1]; c.Core != 0 || c.Siblings.String() != "0-1" || c.L3 != 0 {
		t.Errorf("CPU 1: %+v", c)
	}
	if !strings.Contains(strings.Join(topo.Gaps, "\n"), "no object of type NUMANode") {
		t.Errorf("gaps %q", topo.Gaps)
	}
}

func TestParseKeepsGoing(t *testing.T) {
	for broken, gap := range map[string]string{
		`os_index="1" cpuset="0x2" local_memory="1073741824"`: "local_memory",
		`size="2097152" count="7"`:                            "page_type",
		`pci_type="0106 [8086:0000] [0000:0000] 00"`:          "pci_type",
		`length="9">10 21 24 21 10 `:                          "distances2",
		`type="PU" os_index="1"`:                              "PU: os_index",
		`type="NUMANode" os_index="2" cpuset="0x3"`:           "cpuset: mask",
	} {
		spoiled := strings.NewReplacer("1073741824", "much", "count=\"7\"", "count=\"-7\"", "0106", "zz", "10 21 24",
			"x", `PU" os_index="1"`, `PU" os_index="-1"`, `cpuset="0x3"`, `cpuset="0xf...f"`).
			Replace(broken)
		text := strings.Replace(cxl, broken, spoiled, 1)
		if text == cxl {
			t.Fatalf("%q does not spoil the document", broken)
		}
		topo := parse(t, text)
		if !strings.Contains(strings.Join(topo.Gaps, "\n"), gap) {
			t.Errorf("%s: gaps %q; want %q", spoiled, topo.Gaps, gap)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"": "lstopo --of xml", "<topology/>": "no object of type PU", "<domain/>": "expected element type " +
			"<topology>", "{}": "lstopo",
		`<topology><object type="PU" os_index="0"/>`:                                          "XML syntax error",
		"<topology>" + strings.Repeat(`<object type="Group"/>`, maxObjects+1) + "</topology>": "more than",
		"<topology>" + strings.Repeat(`<object type="Group">`, 20000):                         "exceeded max depth",
	} {
		if topo, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %d nodes, %v; want an error with %q", text, len(topo.Nodes), err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(cxl))
	f.Add(
		[]byte(
			`<topology><object type="Machine" cpuset="0x1"><distances nbobjs="1" latency_base="1"><latency value="1e9"/></distances><object type="NUMANode" os_index="0" cpuset="0x1"/><object type="PU" os_index="0"/></object></topology>`,
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := Parse(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := topo.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
