package drivers_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
)

// The drivers' own tests of real system calls and of a real libvirt need
// several nodes: their test programs run inside a lab, one after the other.
func TestLabDriversOnARealHost(t *testing.T) {
	labtest.NeedsLab(t)
	const linux, libvirt = "../../internal/host/linux", "../../internal/host/libvirt"
	h := labtest.Boot(t, "square4", lab.Options{Saved: true, Files: map[string]string{
		"linux-tests": labtest.Build(t, linux), "libvirt-tests": labtest.Build(t, libvirt),
	}})
	t.Run("linux", func(t *testing.T) { labtest.Inside(t, h, "linux-tests", linux) })
	t.Run("libvirt", func(t *testing.T) {
		// The tests start a libvirtd of their own.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		status, err := h.Run(ctx,
			[]string{"sh", "-c", "pkill -x libvirtd; while pgrep -x libvirtd >/dev/null; do sleep 0.1; done"},
			io.Discard, t.Output())
		if err != nil || status != 0 {
			t.Fatalf("stopping libvirtd: status %d, %v", status, err)
		}
		labtest.Inside(t, h, "libvirt-tests", libvirt)
	})
}
