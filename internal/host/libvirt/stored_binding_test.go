package libvirt

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func mustBinding(t *rapid.T, xml []byte) string {
	part, err := bindingIn(xml)
	if err != nil {
		t.Fatalf("%v\n%s", err, xml)
	}
	return part
}

// Whatever Rewrite wrote into a domain XML, withBinding takes all of it back
// except the intent.
func TestWithBinding_TakesRewriteBack(t *testing.T) {
	for name, xml := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := mustParse(t, xml)
			rapid.Check(t, func(rt *rapid.T) {
				p := drawPlacement(rt, d)
				former := mustBinding(rt, xml)
				bound, err := Rewrite(xml, p, Metadata{Spec: guest.Spec{Name: d.Name}})
				if err != nil {
					rt.Fatalf("%v\nplacement %+v", err, p)
				}
				restored, err := withBinding(bound, former)
				if err != nil {
					rt.Fatal(err)
				}
				if diff := cmp.Diff(former, mustBinding(rt, restored)); diff != "" {
					rt.Errorf("the binding (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(foreign(rt, xml, xml, p), foreign(rt, restored, xml, p)); diff != "" {
					rt.Errorf("changed a part outside the binding:\n%s", diff)
				}
				again, err := withBinding(restored, former)
				if diff := cmp.Diff(string(restored), string(again)); err != nil || diff != "" {
					rt.Errorf("a second time: %v\n%s", err, diff)
				}
			})
		})
	}
}

// Other tools' content of the same elements stays, whether it was there before
// or was added since.
func TestWithBinding_KeepsTheRest(t *testing.T) {
	former := `<domain><vcpu placement='auto' cpuset='0-3'/>
<cputune><vcpupin vcpu='0' cpuset='2'/></cputune><cpu/></domain>`
	now := `<domain><name>g</name><vcpu placement='static' current='1'>2</vcpu>
  <cputune>
    <shares>512</shares>
    <vcpupin vcpu='0' cpuset='7'/>
    <emulatorpin cpuset='7'/>
  </cputune>
  <numatune><memory mode='strict' nodeset='1'/></numatune>
  <memoryBacking><nosharepages/><source type='memfd'/></memoryBacking>
  <cpu mode='host-model'>
    <numa><cell id='0' cpus='0-1' memory='1024' unit='KiB'/></numa>
  </cpu>
</domain>`
	restored, err := withBinding([]byte(now), former)
	if err != nil {
		t.Fatal(err)
	}
	want := `<domain><name>g</name><vcpu placement='auto' current='1' cpuset='0-3'>2</vcpu>
  <cputune>
    <shares>512</shares>
    <vcpupin vcpu='0' cpuset='2'/>
  </cputune>
  <memoryBacking><nosharepages/></memoryBacking>
  <cpu mode='host-model'>
  </cpu>
</domain>`
	if diff := cmp.Diff(want, string(restored)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBindingIn_HasNoSecrets(t *testing.T) {
	xml := `<domain><name>g</name><vcpu>2</vcpu><devices><graphics type='vnc' passwd='secret'/></devices></domain>`
	part, err := bindingIn([]byte(xml))
	if err != nil || strings.Contains(part, "secret") {
		t.Errorf("%v: %s", err, part)
	}
}

func TestDriver_RestoresWhatTheGuestNeverHad(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	xml := `<domain type='test'><name>plain</name><memory unit='MiB'>512</memory><vcpu>4</vcpu>
<os><type>hvm</type></os></domain>`
	if err := d.Create(ctx, "plain", []byte(xml), CreateOptions{Persistent: true}); err != nil {
		t.Fatal(err)
	}
	former, err := d.StoredBinding(ctx, "plain")
	if err != nil {
		t.Fatal(err)
	}
	before, err := d.XML(ctx, "plain", Stored)
	if err != nil {
		t.Fatal(err)
	}
	s, p := newGuest(4, 512*topology.MiB)
	p.Guest, p.MemoryMode = "plain", guest.MemoryStrict
	if err := d.Configure(ctx, "plain", Metadata{Spec: s, Placement: p}); err != nil {
		t.Fatal(err)
	}
	if bound, err := d.StoredBinding(ctx, "plain"); err != nil || bound == former {
		t.Fatalf("%v: the binding is as before: this run tested nothing", err)
	}
	if err := d.RestoreBinding(ctx, "plain", former); err != nil {
		t.Fatal(err)
	}
	if err := d.Forget(ctx, "plain"); err != nil {
		t.Fatal(err)
	}
	after, err := d.XML(ctx, "plain", Stored)
	left := strings.Replace(string(after), "  <metadata/>\n", "", 1) // libvirt leaves that without the intent
	if diff := cmp.Diff(string(before), left); err != nil || diff != "" {
		t.Errorf("%v: the stored XML (-before +after):\n%s", err, diff)
	}
}
