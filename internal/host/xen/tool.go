package xen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/numavisor/numavisor/internal/text"
)

// ErrNoTool means that a program of Xen's tools is not installed, or not in the PATH.
var ErrNoTool = errors.New("is not installed or not in the PATH; install Xen's tools (on Debian, xen-utils)")

// ErrHangs means that a program of Xen's tools did not end within its deadline.
var ErrHangs = errors.New("does not answer")

// CallTime is the deadline of a call that reads or pins. xl answers in milliseconds; it hangs
// if xenstored does not run, or another xl holds its lock.
const CallTime = 15 * time.Second

// maxLog bounds what is read of the messages of xl migrate.
const maxLog = 1 << 20

// graceTime is how long a program that was ended may hold its output open.
const graceTime = time.Second

// Run runs a program of Xen's tools and returns its output. The error has what the program
// wrote to its standard error.
type Run func(ctx context.Context, program string, args ...string) ([]byte, error)

// FailedError means that a program ended with a status other than 0.
type FailedError struct {
	Command string
	Status  int
	Said    string // its messages in one line; see said
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%s: exit status %d: %s", e.Command, e.Status, e.Said)
}

// runTool runs an installed program and adds the CPU time that it used.
func (d *Driver) runTool(ctx context.Context, program string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.WaitDelay = graceTime
	// Ctrl-C in a terminal reaches a whole process group, and xl must not end while it builds or migrates a VM.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, messages bytes.Buffer
	command.Stdout, command.Stderr = &out, &messages
	readLog := func() {}
	if len(args) > 0 && args[0] == "migrate" {
		log, err := os.CreateTemp("", "numavisor-migrate-*.log")
		if err != nil {
			return nil, err
		}
		defer func() { _, _ = log.Close(), os.Remove(log.Name()) }()
		// xl writes its progress here, also if this process is killed: with a pipe, that would end xl and leave the VM
		// suspended.
		command.Stdout, command.Stderr = log, log
		readLog = func() { _, _ = io.Copy(&messages, io.NewSectionReader(log, 0, maxLog)) }
	}
	err := command.Run()
	readLog()
	if ended := command.ProcessState; ended != nil {
		d.spent.Add(int64(ended.UserTime() + ended.SystemTime()))
	}
	name := strings.Join(append([]string{program}, args[:min(len(args), 1)]...), " ")
	var status *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s %w", program, ErrNoTool)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", name, ctx.Err())
	case errors.As(err, &status):
		return out.Bytes(), &FailedError{Command: name, Status: status.ExitCode(), Said: said(messages.String())}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), nil
}

// said returns a program's messages in one line: the first ones, which name the cause, and the last one. Between
// them libxl reports how it cleans up.
func said(messages string) string {
	const first = 3
	lines := strings.Split(strings.TrimSpace(messages), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	if len(lines) > first+1 {
		lines = append(lines[:first:first], "...", lines[len(lines)-1])
	}
	return text.Shorten(strings.Join(lines, "; "), 700)
}

// call runs a program with a deadline of its own, within that of the context.
func (d *Driver) call(ctx context.Context, limit time.Duration, program string, args ...string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := d.run(bounded, program, args...)
	// A program that failed otherwise, late or not, is reported as it failed.
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%s %s: %w within %v; check that xenstored runs and that no other xl command waits "+
			"('ps -C xl')", program, strings.Join(args[:min(len(args), 1)], ""), ErrHangs, limit)
	}
	return out, err
}

// hungShare is the part of the deadline that a call has after one that hung: an observation makes several calls, and
// its caller waits for all of them.
const hungShare = 5

func (d *Driver) xl(ctx context.Context, args ...string) ([]byte, error) {
	limit := d.limit
	if d.hung.Load() {
		limit /= hungShare
	}
	out, err := d.call(ctx, limit, "xl", args...)
	if ctx.Err() == nil {
		d.hung.Store(errors.Is(err, ErrHangs))
	}
	return out, err
}
