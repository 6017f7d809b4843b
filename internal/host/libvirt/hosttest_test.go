package libvirt

import (
	"context"
	"os"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestDriver_PassesTheSuite runs against libvirt's simulated hypervisor. It
// pins no vCPUs of running guests, and does not change helper threads' pins of
// the running guest and of its stored configuration in one call.
func TestDriver_PassesTheSuite(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Target {
		t.Helper()
		d := testDriver(t)
		topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
		if err != nil {
			t.Fatal(err)
		}
		target := suiteTarget(d, topo, Machine{})
		render := target.Render
		target.Render = func(s guest.Spec, p guest.Placement) (guest.Definition, error) {
			g, err := render(s, p)
			g.Text = []byte(strings.Replace(string(g.Text), "type='kvm'", "type='test'", 1))
			return g, err
		}
		target.Lacks = []hosttest.Function{hosttest.PinRunningVCPU, hosttest.PinStoredHelpers}
		return target
	})
}

// realHost is the running kernel as the suite needs it.
type realHost struct{ linux.Root }

func (h realHost) Topology() (topology.Topology, error) { return linux.ReadTopology(string(h.Root)) }

// TestLabSuite runs against libvirt's QEMU driver and real guests. It runs
// inside the lab, or as root where a libvirtd may be started. With
// NUMAVISOR_LAB_TYPE=qemu the guests' CPUs are emulated, and need no KVM.
func TestLabSuite(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB_INSIDE") != "1" {
		t.Skip("runs only inside the lab (NUMAVISOR_LAB_INSIDE=1): it starts libvirtd and real guests")
	}
	(&lab{t: t}).startDaemon()
	d := New("qemu:///system")
	defer d.Close()
	topo, err := linux.ReadTopology("/")
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{Type: os.Getenv("NUMAVISOR_LAB_TYPE")}
	hosttest.Run(t, func(*testing.T) hosttest.Target {
		target := suiteTarget(d, topo, m)
		target.Kernel = realHost{linux.Live}
		return target
	})
}

// suiteTarget is a driver as the suite takes it.
func suiteTarget(d *Driver, topo topology.Topology, m Machine) hosttest.Target {
	return hosttest.Target{
		Hypervisor: d, Topology: topo,
		PowerOff: func(ctx context.Context, name string) error { return call(ctx, d, name, (*libvirt.Domain).Destroy) },
		Render: func(s guest.Spec, p guest.Placement) (guest.Definition, error) {
			xml, err := DomainXML(Metadata{Spec: s, Placement: p}, m)
			if err != nil {
				return guest.Definition{}, err
			}
			g, _, err := Definition(xml)
			return g, err
		},
		Garble: func(ctx context.Context, name string) error {
			return d.tune(ctx, "garbling its intent", name, Everywhere,
				func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
					return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, "<guest>{</guest>", metadataPrefix,
						MetadataURI, flags)
				})
		},
	}
}
