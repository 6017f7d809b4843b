package labtest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/numavisor/numavisor/lab"
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
		NoteSilence(t, err)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Kill(); err != nil {
			t.Error("ending the lab:", err)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			checkCPUs(t, h)
		}
	})
	return h
}

// checkCPUs records an emulator that has stopped one of the lab's CPUs: then
// the test has failed for that.
func checkCPUs(t *testing.T, h *lab.Host) {
	t.Helper()
	if err := h.CheckCPUs(context.WithoutCancel(t.Context())); err != nil {
		t.Log("checking the lab after the failure:", err)
		NoteSilence(t, err)
	}
}

// SilenceVariable names a file for the names of tests whose lab locked up or reset itself.
// lab/suite repeats such tests, and no others.
const SilenceVariable = "NUMAVISOR_LAB_SILENCE"

// NoteSilence records that the test's lab has locked up or reset itself, if that is the error.
func NoteSilence(t testing.TB, err error) {
	t.Helper()
	path := os.Getenv(SilenceVariable)
	if !errors.Is(err, lab.ErrSilent) && !errors.Is(err, lab.ErrReset) || path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(t.Name() + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error("noting that the lab locked up:", err)
	}
}
