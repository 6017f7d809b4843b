package libvirt

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
)

func domainOn(node int) string {
	return fmt.Sprintf(`<domain type='kvm'><name>a</name><uuid>u</uuid><memory unit='GiB'>1</memory><vcpu>2</vcpu>
<numatune><memory mode='strict' nodeset='%d'/></numatune></domain>`, node)
}

// The XML of a guest is parsed again only when it has changed.
func TestReadings_ParseUnchangedXMLOnce(t *testing.T) {
	var r readings
	read := func(uuid, xml string) Domain {
		t.Helper()
		d, err := r.read(uuid, xml)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := ParseDomain([]byte(xml))
		want.Config.SharedStorage = new(true) // it has no disks
		if diff := cmp.Diff(want, d, cmp.AllowUnexported(Domain{})); diff != "" {
			t.Errorf("read (-want +got):\n%s", diff)
		}
		return d
	}
	first := read("u", domainOn(1))
	if again := read("u", domainOn(1)); again.Config.NUMATune != first.Config.NUMATune {
		t.Error("the same text was read twice")
	}
	if other := read("v", domainOn(1)); other.Config.NUMATune == first.Config.NUMATune {
		t.Error("two guests share a cached result")
	}
	read("u", domainOn(2))
	if back := read("u", domainOn(1)); back.Config.NUMATune == first.Config.NUMATune {
		t.Error("the cache has more than the last result")
	}
	if _, err := r.read("u", "<domain>"); err == nil {
		t.Error("text that is not XML returned the earlier result")
	}
	r.keep([]inventory.Guest{{UUID: "v"}})
	if len(r.last) != 1 {
		t.Errorf("%d cached results of one guest", len(r.last))
	}
}
