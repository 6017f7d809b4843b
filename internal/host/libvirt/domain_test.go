package libvirt

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func cpus(s string) topology.CPUSet     { return topology.MustParseSet[topology.CPUID](s) }
func nodeSet(s string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](s) }
func vcpuSet(s string) guest.VCPUSet    { return topology.MustParseSet[guest.VCPUID](s) }
func pins(s ...string) map[guest.VCPUID]topology.CPUSet {
	m := map[guest.VCPUID]topology.CPUSet{}
	for i, p := range s {
		m[guest.VCPUID(i)] = cpus(p)
	}
	return m
}

// TestParseDomain gives the whole of what each fixture says about locality.
func TestParseDomain(t *testing.T) {
	const gib = topology.GiB
	want := map[string]inventory.Config{
		"virt-manager": {VCPUs: 4, Memory: 4 * gib, Source: "memfd", Shared: true},
		"nova": {
			VCPUs: 8, Memory: 16 * gib, PageSize: gib, Source: "hugetlbfs", Shared: true,
			NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: nodeSet("0-1"), Cells: []inventory.CellTune{
				{Cell: 0, Mode: "strict", Nodes: nodeSet("0")}, {Cell: 1, Mode: "strict", Nodes: nodeSet("1")}}},
			Pins: pins("2", "3", "6", "7", "10", "11", "14", "15"), EmulatorPin: cpus("0,4"),
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpuSet("0-3"), Memory: 8 * gib},
				{ID: 1, VCPUs: vcpuSet("4-7"), Memory: 8 * gib}},
			Devices: []string{"0000:81:02.5"},
		},
		"ovirt": {
			VCPUs: 16, Memory: 9 * gib, Source: "anonymous", AutoPlacement: true, IOThreads: 1,
			NUMATune: &inventory.NUMATune{Mode: "interleave", Auto: true},
			Cells:    []inventory.ConfigCell{{VCPUs: vcpuSet("0-15"), Memory: 8 * gib}},
		},
		"kubevirt": {
			VCPUs: 4, Memory: 2 * gib, PageSize: 2 * topology.MiB, Source: "memfd",
			Pins: pins("4", "5", "4-7", "4-7"), EmulatorPin: cpus("4-7"), IOThreads: 2,
			IOThreadPins: map[int]topology.CPUSet{1: cpus("4-7"), 2: cpus("4-7")},
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpuSet("0-1"), Memory: gib},
				{ID: 1, VCPUs: vcpuSet("2-3"), Memory: gib}},
		},
		"commandline": {
			VCPUs: 6, Memory: 16 * gib, Source: "anonymous",
			Pins: pins("2", "10", "0-2,4-7", "0-2,4-7", "0-2,4-7", "0-2,4-7"), EmulatorPin: cpus("1,9"),
			Devices: []string{"0000:01:00.0", "0000:3b:00.0", "mdev:83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"},
		},
		"sev": {
			VCPUs:    2,
			Memory:   2 * gib,
			Source:   "anonymous",
			Locked:   true,
			NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: nodeSet("0")},
		},
		"pxb": {
			VCPUs: 8, Memory: 8 * gib, Source: "anonymous", IOThreads: 3,
			IOThreadPins: map[int]topology.CPUSet{2: cpus("0")},
			Cells: []inventory.ConfigCell{
				{ID: 0, VCPUs: vcpuSet("0-3"), Memory: 4 * gib, Distances: map[guest.CellID]int{0: 10, 1: 21}},
				{ID: 1, VCPUs: vcpuSet("4-7"), Memory: 4 * gib, Distances: map[guest.CellID]int{0: 21, 1: 10}}},
			Devices: []string{"0000:81:00.1"},
		},
		"future": {
			VCPUs:    3,
			Memory:   6 * gib,
			Source:   "anonymous",
			NUMATune: &inventory.NUMATune{Mode: "weighted", Nodes: nodeSet("0-3")},
			Pins:     map[guest.VCPUID]topology.CPUSet{2: cpus("0-3")},
		},
		"minimal": {VCPUs: 1, Memory: 64 * topology.MiB, Source: "anonymous"},
		"hugepages": {
			VCPUs:     4,
			Memory:    4 * gib,
			PageSize:  2 * topology.MiB,
			Source:    "hugetlbfs",
			Shared:    true,
			Immediate: true,
		},
		"auto": {VCPUs: 2, Memory: 1024000000, Source: "anonymous", AutoPlacement: true,
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpuSet("0"), Memory: 512000000},
				{ID: 1, VCPUs: vcpuSet("1"), Memory: 512000000}}},
		"bound-before": {
			VCPUs:       2,
			Memory:      gib,
			Source:      "memfd",
			Shared:      true,
			NUMATune:    &inventory.NUMATune{Mode: "strict", Nodes: nodeSet("2")},
			Pins:        pins("4-5", "4-5"),
			EmulatorPin: cpus("4-5"),
		},
		"file-backed": {VCPUs: 2, Memory: 3 * gib, Source: "file", Shared: true, Immediate: true,
			NUMATune: &inventory.NUMATune{
				Cells: []inventory.CellTune{{Cell: 0, Mode: "preferred", Nodes: nodeSet("1")}},
			},
			Cells: []inventory.ConfigCell{{VCPUs: vcpuSet("0-1"), Memory: 2 * gib}}},
	}
	all := fixtures(t)
	for name, config := range want {
		if diff := cmp.Diff(config, mustParse(t, all[name]).Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(want) != len(all) {
		t.Errorf("%d fixtures, %d expectations", len(all), len(want))
	}
}

func TestParseDomainIdentity(t *testing.T) {
	d := mustParse(t, fixtures(t)["bound-before"])
	if d.Name != "moved" || d.Type != "kvm" || d.Intent == nil || d.Intent.Placement.Nodes.String() != "2" ||
		d.Intent.Spec.VCPUs != 2 {
		t.Errorf("read %+v, intent %+v", d, d.Intent)
	}
	if g := d.Guest(); !g.Managed || g.Placement.Guest != "moved" || g.State != "shutoff" {
		t.Errorf("as inventory: %+v", g)
	}
	if d := mustParse(t, fixtures(t)["sev"]); !d.Confidential || d.Intent != nil || d.Guest().Managed {
		t.Errorf("sev: %+v", d)
	}
	if d := mustParse(t, fixtures(t)["pxb"]); cmp.Diff([]int{2, 7, 1}, d.IOThreads) != "" {
		t.Errorf("I/O threads %v", d.IOThreads)
	}
	broken := strings.Replace(string(fixtures(t)["bound-before"]), `{"spec"`, `{"spec`, 1)
	if d := mustParse(t, []byte(broken)); d.IntentError == nil || d.Intent != nil ||
		!strings.Contains(d.IntentError.Error(), MetadataURI) {
		t.Errorf("broken intent: %+v", d)
	}
}

func TestParseDomainRefuses(t *testing.T) {
	domain := func(inner string) string {
		return "<domain><name>x</name><memory>1024</memory><vcpu>2</vcpu>" + inner + "</domain>"
	}
	for _, c := range []struct{ xml, says string }{
		{"", "contains no element"},
		{"<domain>", "ends inside <domain>"},
		{"<domain></domian>", "</domian> closes nothing"},
		{"<domain/><domain/>", "second outermost"},
		{"<domain/>text", "text outside"},
		{"<domainstatus/>", "is <domainstatus>, not <domain>"},
		{`<!DOCTYPE d [<!ENTITY a "aaaa">]><domain/>`, "entities are not allowed"},
		{"<domain>&a;</domain>", "invalid character entity"},
		{`<?xml version="1.0" encoding="UTF-16"?><domain/>`, "encoding"},
		{strings.Repeat("<domain>", 100), "nested deeper than 64"},
		{"<domain><!--" + strings.Repeat("x", maxXMLBytes) + "--></domain>", "more than the 4194304 allowed"},
		{"<domain><memory>12x</memory></domain>", `memory: "12x" is not an amount`},
		{"<domain><memory unit='parsec'>12</memory></domain>", `unit "parsec" is unknown`},
		{"<domain><memory unit='EiB'>16</memory></domain>", "more than 16 EiB"},
		{"<domain><vcpu>0</vcpu></domain>", `vcpu: "0"`},
		{"<domain><vcpu>99999999999999999999</vcpu></domain>", "vcpu:"},
		{domain("<cputune><vcpupin vcpu='a' cpuset='1'/></cputune>"), `vcpu="a"`},
		{domain("<cputune><vcpupin vcpu='0' cpuset='3-1'/></cputune>"), "runs backwards"},
		{domain("<cputune><vcpupin vcpu='0' cpuset='0-7,^1-3'/></cputune>"), "removes single ids"},
		{domain("<cputune><emulatorpin cpuset='99999'/></cputune>"), "99999"},
		{domain("<cputune><iothreadpin iothread='-1' cpuset='1'/></cputune>"), "iothread"},
		{domain("<numatune><memory nodeset='x'/></numatune>"), "numatune nodeset"},
		{domain("<numatune><memnode cellid='-1' nodeset='1'/></numatune>"), "memnode cellid"},
		{domain("<cpu><numa><cell id='1' memory='1'/></numa></cpu>"), "numa cell id=1"},
		{domain("<cpu><numa><cell id='0' memory='1'/><cell id='0' memory='1'/></numa></cpu>"), "unique"},
		{domain("<cpu><numa><cell cpus='0-1' memory='1'/><cell cpus='1' memory='1'/></numa></cpu>"), "another cell"},
		{domain("<cpu><numa><cell memory='18014398509481983'/><cell " +
			"memory='18014398509481983'/></numa></cpu>"), "16 EiB"},
		{domain("<cpu><numa><cell memory='1'><distances><sibling id='0' " +
			"value='256'/></distances></cell></numa></cpu>"), "sibling value"},
		{domain("<memoryBacking><hugepages><page size='big'/></hugepages></memoryBacking>"), "page size"},
		{domain("<iothreads>-1</iothreads>"), "iothreads"},
		{domain("<devices><memory><target><size unit='GiB'>1</size></target></memory></devices>"), "less than its " +
			"memory devices"},
		{domain("<devices><hostdev type='pci'><source><address bus='0x1ff' slot='0' " +
			"function='0'/></source></hostdev></devices>"), "bus="},
	} {
		_, err := ParseDomain([]byte(c.xml))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.80s\n  error %v, wanted %q", c.xml, err, c.says)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%.80s\n  error of %d characters", c.xml, len(err.Error()))
		}
	}
}

// TestParseListAgainstBruteForce: lists of ranges and exclusions mean what they
// mean when applied one by one to a map.
func TestParseListAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := map[topology.CPUID]bool{}
		var parts []string
		for range rapid.IntRange(1, 8).Draw(t, "parts") {
			first := rapid.IntRange(0, 40).Draw(t, "first")
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				last := first + rapid.IntRange(0, 20).Draw(t, "length")
				for i := first; i <= last; i++ {
					in[topology.CPUID(i)] = true
				}
				parts = append(parts, strconv.Itoa(first)+"-"+strconv.Itoa(last))
			case 1:
				in[topology.CPUID(first)] = true
				parts = append(parts, " "+strconv.Itoa(first)+" ")
			default:
				in[topology.CPUID(first)] = false
				parts = append(parts, "^"+strconv.Itoa(first))
			}
		}
		got, err := parseList[topology.CPUID]("cpuset", strings.Join(parts, ","))
		if err != nil {
			t.Fatal(err)
		}
		for i := range topology.CPUID(70) {
			if got.Contains(i) != in[i] {
				t.Fatalf("%v: CPU %d: %v", parts, i, got.Contains(i))
			}
		}
	})
}

func TestParseMemory(t *testing.T) {
	for _, c := range []struct {
		value, unit string
		want        topology.Bytes
	}{
		{"1", "", 1024}, {" 2 ", "KiB", 2048}, {"1", "KB", 1000}, {"3", "b", 3}, {"1", "G", topology.GiB},
		{"1", "GB", 1e9}, {"5", "MiB", 5 * topology.MiB}, {"1", "TiB", topology.TiB},
	} {
		if got, err := parseMemory("memory", c.value, c.unit); err != nil || got != c.want {
			t.Errorf("%q %q: %d, %v", c.value, c.unit, got, err)
		}
	}
}
