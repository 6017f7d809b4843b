package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killTime is how long an ended context's command may take to end.
	killTime = 20 * time.Second
	// lookEvery is how often a waiting Run checks whether the lab is alive.
	lookEvery = time.Second
)

// alive reports whether the lab has sent a heartbeat recently.
func (h *Host) alive() error {
	if since, silent := h.agent.silentSince(); silent {
		return fmt.Errorf("%w since %s; the end of its console: %s", ErrSilent, since.Format(time.TimeOnly),
			h.consoleTail())
	}
	return nil
}

// Run runs a command in the lab and returns its exit status: 128 and the
// signal's number if a signal ended it, 127 if there is no such program. Output
// is passed on as it comes; several may run at a time. Output of processes that
// the command leaves behind is dropped. When ctx ends, the command and its
// process group are ended too.
func (h *Host) Run(ctx context.Context, argv []string, stdout, stderr io.Writer) (int, error) {
	if len(argv) == 0 {
		return 0, errors.New("lab: no command given")
	}
	c, err := h.agent.start(argv)
	if err != nil {
		return 0, fmt.Errorf("running %s in the lab: %w", argv[0], h.whyNotSent(err))
	}
	defer h.agent.forget(c)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	done := ctx.Done()
	var given <-chan time.Time
	var failed error // of a writer
	for {
		status, ended, err := c.pass(stdout, stderr)
		if err != nil && failed == nil { // the reader is gone: the command ends
			failed, done = err, nil
			stdout, stderr = io.Discard, io.Discard
			if given, err = h.kill(c); err != nil {
				return 0, errors.Join(failed, h.whyNotSent(err))
			}
		}
		if ended {
			return status, errors.Join(failed, ctx.Err())
		}
		if err := h.alive(); err != nil {
			return 0, errors.Join(failed, err)
		}
		select {
		case <-c.changed:
		case <-look.C:
		case <-done:
			done = nil // order it once, then give it time to end
			if given, err = h.kill(c); err != nil {
				return 0, errors.Join(ctx.Err(), h.whyNotSent(err))
			}
		case <-given:
			return 0, errors.Join(failed, ctx.Err(),
				fmt.Errorf("%s in the lab does not end within %v", argv[0], killTime))
		case <-h.ended:
			return 0, fmt.Errorf("the lab ended while the command ran: %w", h.endOfQEMU())
		}
	}
}

// failed is the error of a command that ran in the lab: the one of running it, or its status and the last line of its
// errors.
func failed(status int, stderr []byte, running error) error {
	if running != nil || status == 0 {
		return running
	}
	return fmt.Errorf("status %d: %s", status, lastLine(stderr))
}

// ErrReset means that QEMU ended by itself with status 0: the emulated machine has reset itself. QEMU's emulation of
// nested virtualisation does so now and then, and the console shows no reason.
var ErrReset = errors.New("the emulated machine reset itself")

// ErrCrashed means that QEMU ended by a fault of its own: the kernel killed it for a bad access or instruction, or it
// aborted itself. QEMU 7.2 does so now and then, for instance while the firmware starts. A QEMU that was killed
// (SIGKILL) may have been killed for its memory, or by a user: that is not a crash.
var ErrCrashed = errors.New("the emulator crashed")

// crashed reports whether a program ended by a signal that reports a fault of the program.
func crashed(ended error) bool {
	var exit *exec.ExitError
	if !errors.As(ended, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return false
	}
	switch status.Signal() {
	case syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP:
		return true
	default:
		return false
	}
}

// IsEmulatorFault reports whether an error of a lab is one of its emulator, not of what ran in it: QEMU locked up,
// crashed, or reset its machine, or a VM in it restarted.
func IsEmulatorFault(err error) bool {
	return errors.Is(err, ErrSilent) || errors.Is(err, ErrReset) || errors.Is(err, ErrCrashed) ||
		errors.Is(err, ErrRestarted)
}

// endOfQEMU is the error of a QEMU that has ended.
func (h *Host) endOfQEMU() error {
	cause := h.cause
	switch {
	case cause == nil:
		cause = ErrReset
	case crashed(cause):
		cause = errors.Join(ErrCrashed, cause)
	}
	return fmt.Errorf("QEMU ended: %w; its console: %s", errors.Join(cause, io.ErrUnexpectedEOF), h.consoleTail())
}

// endTime is how long a QEMU that has closed its connections may take to end.
const endTime = 10 * time.Second

// whyNotSent returns how QEMU ended, if that is why a message to the lab could not be sent; else the error of sending.
// A lab that resets itself between two commands is found by the second one.
func (h *Host) whyNotSent(err error) error {
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	select {
	case <-h.ended:
		return errors.Join(err, h.endOfQEMU())
	case <-time.After(endTime):
		return err
	}
}

// kill asks the agent to end a command's process group; the time that it has
// for that runs from now.
func (h *Host) kill(c *command) (<-chan time.Time, error) {
	return time.After(killTime), h.agent.send(killMessage, c.id, nil)
}

// quote makes a word that a POSIX shell does not interpret.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
