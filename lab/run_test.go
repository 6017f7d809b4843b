package lab

import (
	"errors"
	"io"
	"os/exec"
	"testing"
	"time"
)

// labThatEnded returns a lab whose QEMU has closed its end of the agent's link, and ends after a while.
func labThatEnded(t *testing.T, after time.Duration) *Host {
	t.Helper()
	link, far, err := newAgentLink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.close)
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	h := &Host{folder: t.TempDir(), agent: link, ended: make(chan struct{})}
	ending := time.AfterFunc(after, func() { close(h.ended) })
	t.Cleanup(func() { ending.Stop() })
	return h
}

// The suite repeats a test whose lab reset itself, also if that happened while no command ran.
func TestRun_ReportsAResetBetweenTwoCommands(t *testing.T) {
	for _, after := range []time.Duration{0, 100 * time.Millisecond} {
		h := labThatEnded(t, after)
		if _, err := h.Run(t.Context(), []string{"true"}, io.Discard, io.Discard); !errors.Is(err, ErrReset) {
			t.Errorf("QEMU ended %v later: %v, want %v", after, err, ErrReset)
		}
		if err := h.CheckCPUs(t.Context()); !errors.Is(err, ErrReset) {
			t.Errorf("the check of its CPUs: %v, want %v", err, ErrReset)
		}
	}
}

func TestRun_ReportsHowQEMUFailed(t *testing.T) {
	h := labThatEnded(t, 0)
	h.cause = errors.New("exit status 1")
	_, err := h.Run(t.Context(), []string{"true"}, io.Discard, io.Discard)
	if !errors.Is(err, h.cause) || errors.Is(err, ErrReset) {
		t.Errorf("%v, want %v", err, h.cause)
	}
}

// The suite repeats a test whose emulator crashed, not one whose emulator was killed or refused its arguments.
func TestRun_ReportsACrashOfQEMU(t *testing.T) {
	for end, want := range map[string]bool{"kill -SEGV $$": true, "kill -ABRT $$": true, "kill -KILL $$": false,
		"kill -TERM $$": false, "exit 1": false, "exit 139": false} {
		h := labThatEnded(t, 0)
		h.cause = exec.Command("sh", "-c", "ulimit -c 0; "+end).Run()
		_, err := h.Run(t.Context(), []string{"true"}, io.Discard, io.Discard)
		if errors.Is(err, ErrCrashed) != want || !errors.Is(err, h.cause) || errors.Is(err, ErrReset) {
			t.Errorf("%s: %v; a crash: %v, want %v", end, err, !want, want)
		}
	}
}
