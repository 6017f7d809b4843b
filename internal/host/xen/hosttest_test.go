package xen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestDriver_PassesTheSuite runs against a simulated Xen.
func TestDriver_PassesTheSuite(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Target {
		t.Helper()
		topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
		if err != nil {
			t.Fatal(err)
		}
		d := New(newSimulated(topo).run)
		return suiteTarget(d, topo, "")
	})
}

// suiteTarget is a driver as the suite takes it; boot are the lines of a configuration that make a
// real guest boot.
func suiteTarget(d *Driver, topo topology.Topology, boot string) hosttest.Target {
	return hosttest.Target{
		Hypervisor: d, Topology: topo,
		Render: func(s guest.Spec, p guest.Placement) (guest.Definition, error) {
			if strings.ContainsAny(s.Name, "\"\\\n") {
				return guest.Definition{}, errors.New("the name cannot be written into an xl configuration")
			}
			text := fmt.Sprintf("name = \"%s\"\ntype = \"pvh\"\nmemory = %d\nvcpus = %d\n%s", s.Name, s.Memory>>20,
				s.VCPUs, boot)
			c, err := ParseConfig([]byte(text))
			if err != nil {
				return guest.Definition{}, err
			}
			return guest.Definition{Name: s.Name, Text: c.Rewrite(&p), Intent: &guest.Intent{Spec: s, Placement: p}}, nil
		},
		PowerOff: d.PowerOff,
		Garble: func(ctx context.Context, name string) error {
			_, uuid, err := d.find(ctx, name)
			if err != nil {
				return err
			}
			_, err = d.call(ctx, CallTime, "xenstore-write", intentFolder+"/"+uuid+"/0", "1:bm90IGFuIGludGVudA==")
			return err
		},
		Lacks: []hosttest.Function{hosttest.StoreConfiguration, hosttest.PinHelpers, hosttest.BindMemory,
			hosttest.RetuneRunning, hosttest.PinStoredHelpers},
	}
}
