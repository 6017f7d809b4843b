package drivers_test

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
)

// The drivers' own tests of real system calls and of a real libvirt need
// several nodes: their test programs run inside labs.

const (
	linux   = "../../internal/host/linux"
	libvirt = "../../internal/host/libvirt"
	suite   = "TestLabSuite" // of hosttest, on libvirt's VMs: a lab of its own, since it takes minutes
)

func TestLabLinuxDriver(t *testing.T) {
	labtest.NeedsLab(t)
	t.Parallel()
	h := labtest.Boot(t, "square4",
		lab.Options{Saved: true, Files: map[string]string{"linux-tests": labtest.Build(t, linux)}})
	labtest.Inside(t, h, "linux-tests", linux)
}

func TestLabLibvirtDriver(t *testing.T) {
	names, err := labtest.TestNames(libvirt, "TestLab")
	if err != nil {
		t.Fatal(err)
	}
	runLibvirtTests(t, slices.DeleteFunc(names, func(name string) bool { return name == suite }))
}

func TestLabLibvirtDriverPassesTheSuite(t *testing.T) { runLibvirtTests(t, []string{suite}) }

// runLibvirtTests runs tests that start a libvirtd of their own.
func runLibvirtTests(t *testing.T, names []string) {
	t.Helper()
	labtest.NeedsLab(t)
	t.Parallel()
	h := labtest.Boot(t, "square4",
		lab.Options{Saved: true, Files: map[string]string{"libvirt-tests": labtest.Build(t, libvirt)}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	status, err := h.Run(ctx,
		[]string{"sh", "-c", "pkill -x libvirtd; while pgrep -x libvirtd >/dev/null; do sleep 0.1; done"},
		io.Discard, t.Output())
	if err != nil || status != 0 {
		t.Fatalf("stopping libvirtd: status %d, %v", status, err)
	}
	labtest.Inside(t, h, "libvirt-tests", libvirt, names...)
}
