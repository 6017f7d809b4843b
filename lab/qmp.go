package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// monitor is QEMU's control connection (QMP).
type monitor struct {
	conn net.Conn
	in   *bufio.Reader
}

// greet reads QEMU's greeting and leaves the negotiation mode.
func (m *monitor) greet(ctx context.Context) error {
	if err := m.conn.SetDeadline(deadline(ctx)); err != nil {
		return err
	}
	if _, err := m.in.ReadBytes('\n'); err != nil {
		return fmt.Errorf("QEMU's monitor does not answer: %w", err)
	}
	return m.do(ctx, "qmp_capabilities", nil, nil)
}

// do runs one command and reads its result; events that come meanwhile are dropped.
func (m *monitor) do(ctx context.Context, command string, arguments map[string]any, result any) error {
	order := map[string]any{"execute": command}
	if arguments != nil {
		order["arguments"] = arguments
	}
	text, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if err := m.conn.SetDeadline(deadline(ctx)); err != nil {
		return err
	}
	if _, err := m.conn.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("QEMU's monitor, %s: %w", command, err)
	}
	for {
		line, err := m.in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("QEMU's monitor, %s: %w", command, err)
		}
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("QEMU's monitor, %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("QEMU's monitor, %s: %s", command, answer.Error.Desc)
		case answer.Return != nil && result != nil:
			return json.Unmarshal(answer.Return, result)
		case answer.Return != nil:
			return nil
		}
	}
}

// until repeats a command until done returns true.
func (m *monitor) until(ctx context.Context, command string, done func(status string) (bool, error)) error {
	for {
		var answer struct {
			Status string `json:"status"`
		}
		if err := m.do(ctx, command, nil, &answer); err != nil {
			return err
		}
		if ok, err := done(answer.Status); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("QEMU's monitor, %s: %q: %w", command, answer.Status, ctx.Err())
		case <-time.After(poll):
		}
	}
}

// save writes all that is not in shared memory into a file. The VM stays stopped.
func (m *monitor) save(ctx context.Context, path string) error {
	err := errors.Join(m.do(ctx, "stop", nil, nil), m.ignoreShared(ctx),
		m.do(ctx, "migrate", map[string]any{"uri": "exec:cat > " + quote(path)}, nil))
	if err != nil {
		return err
	}
	return m.until(ctx, "query-migrate", func(status string) (bool, error) {
		if status == "failed" || status == "cancelled" {
			return false, fmt.Errorf("QEMU's state cannot be saved: %s", status)
		}
		return status == "completed", nil
	})
}

// restore reads the file of save, and resumes the VM.
func (m *monitor) restore(ctx context.Context, path string) error {
	err := errors.Join(m.ignoreShared(ctx),
		m.do(ctx, "migrate-incoming", map[string]any{"uri": "exec:cat " + quote(path)}, nil))
	if err != nil {
		return err
	}
	err = m.until(ctx, "query-status",
		func(status string) (bool, error) { return status == "running" || status == "paused", nil })
	if err != nil {
		return err
	}
	return m.do(ctx, "cont", nil, nil)
}

func (m *monitor) ignoreShared(ctx context.Context) error {
	capability := map[string]any{"capability": "x-ignore-shared", "state": true}
	return m.do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []any{capability}}, nil)
}

// deadline is the context's, or a minute from now.
func deadline(ctx context.Context) time.Time {
	if at, ok := ctx.Deadline(); ok {
		return at
	}
	return time.Now().Add(time.Minute)
}
