package libvirt

import (
	"bytes"
	"strings"
	"testing"

	"github.com/beevik/etree"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// ports returns the names of the virtio-serial ports of a domain, as another parser reads them.
func ports(t *rapid.T, xml []byte) (names []string) {
	doc := etree.NewDocument()
	if err := doc.ReadFromBytes(xml); err != nil {
		t.Fatalf("not well-formed: %v\n%s", err, xml)
	}
	for _, e := range doc.FindElements("./domain/devices/channel/target[@type='virtio']") {
		names = append(names, e.SelectAttrValue("name", ""))
	}
	return names
}

// A given XML of a guest with an agent gets the agent's port, once. Other ports, and other guests,
// stay as they are.
func TestRewriteAddsTheAgentsPort(t *testing.T) {
	for name, xml := range fixtures(t) {
		d := mustParse(t, xml)
		rapid.Check(t, func(rt *rapid.T) {
			p := drawPlacement(rt, d)
			intent := Metadata{Spec: guest.Spec{Name: d.Name, VCPUs: d.Config.VCPUs, Memory: d.BootMemory}}
			before := ports(rt, xml)
			switch rapid.SampledFrom([]guest.SharingMode{"", guest.SharingHandoff, guest.SharingScale}).Draw(rt, "sharing") {
			case guest.SharingHandoff:
				p.CPUMode = guest.CPUHandoff
				p.Handoff = &guest.Handoff{Min: 1, Weight: 1, First: topology.SetOf[topology.CPUID](0)}
				before = append(before, GuestPort)
			case guest.SharingScale:
				p.Scale = &guest.Scale{Min: 1, Weight: 1}
				before = append(before, GuestPort)
			}
			bound, err := Rewrite(xml, p, intent)
			if err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
			if got := ports(rt, bound); strings.Join(got, " ") != strings.Join(before, " ") {
				rt.Fatalf("%s: ports %v, want %v in\n%s", name, got, before, bound)
			}
			if again, err := Rewrite(bound, p, intent); err != nil || !bytes.Equal(bound, again) {
				rt.Fatalf("%s: the second time differs (%v):\n%s", name, err, again)
			}
		})
	}
}

// A domain without devices gets them for the port.
func TestRewriteAddsDevicesForTheAgentsPort(t *testing.T) {
	_, p := newGuest(8, 2*topology.GiB)
	p.Handoff = &guest.Handoff{Min: 1, Weight: 1, First: cpus("0")}
	p.Cells, p.Visible = p.Cells[:1], false
	p.Cells[0].VCPUs, p.Cells[0].Memory = topology.Range[guest.VCPUID](0, 7), 2*topology.GiB
	p.Cells[0].Distances, p.Guest = nil, "bare"
	bound, err := Rewrite([]byte("<domain type='kvm'>\n  <name>bare</name>\n  <memory unit='GiB'>2</memory>\n"+
		"  <vcpu>8</vcpu>\n</domain>\n"), p, Metadata{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "  <devices>\n    <channel type='unix'>\n      <target type='virtio' name='org.numavisor.guest.0'/>\n" +
		"    </channel>\n  </devices>\n</domain>\n"
	if !strings.HasSuffix(string(bound), want) {
		t.Errorf("the port is missing in\n%s", bound)
	}
}
