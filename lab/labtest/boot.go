package labtest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/repeat"
)

// NeedsLab skips a test unless 'make test' runs it, with NUMAVISOR_LAB=1.
func NeedsLab(t testing.TB) {
	t.Helper()
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("starts a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' and 'make lab-one T=NAME' do")
	}
}

// Boot returns a lab of a built-in shape that ends with the test.
func Boot(t *testing.T, shape string, o lab.Options) *lab.Host {
	t.Helper()
	NeedsLab(t)
	s, err := lab.FindShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	o.Shape, o.Progress = s, t.Logf
	h, err := lab.Boot(t.Context(), o)
	if err != nil {
		NoteFault(t, err)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Kill(); err != nil {
			t.Error("ending the lab:", err)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			checkLab(t, h)
		}
	})
	return h
}

// checkLab notes the test if the emulator has failed or has stopped one of the lab's CPUs, or if a VM has restarted:
// the test has probably failed because of that.
func checkLab(t *testing.T, h *lab.Host) {
	t.Helper()
	if err := errors.Join(h.CheckVMs(), h.CheckCPUs(context.WithoutCancel(t.Context()))); err != nil {
		t.Log("checking the lab after the failure:", err)
		NoteFault(t, err)
	}
}

// NoteFault lets lab/suite repeat the test if the error is a fault of its emulator.
func NoteFault(t testing.TB, err error) {
	t.Helper()
	if lab.IsEmulatorFault(err) {
		repeat.Note(t)
	}
}
