package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/top"
)

// oneStatus is a daemon that always answers the same.
type oneStatus struct {
	top.Daemon
	status status.Status
	err    error
}

func (d oneStatus) Status(context.Context) (status.Status, error) { return d.status, d.err }

func TestTopWithoutATerminal(t *testing.T) {
	d := oneStatus{
		status: status.Status{
			Host:   "h1",
			Mode:   "auto",
			Guests: []status.Guest{{Name: "web1", State: "running", VCPUs: 2}},
			Sample: inventory.Sample{
				Taken:  time.Now(),
				Guests: []inventory.GuestSample{{Name: "web1", Load: inventory.GuestLoad{CPU: 1.5}}},
			},
		},
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := topCommand(func(string) top.Daemon { return d })
		c.Flags().StringP("output", "o", "table", "")
		c.SetArgs(args)
		c.SetOut(&out)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.Execute()
		return out.String(), err
	}
	text, err := run()
	if err != nil || !strings.Contains(text, "numavisor h1") || !strings.Contains(text, "web1") ||
		strings.Contains(text, "\x1b") {
		t.Errorf("error %v, picture\n%q", err, text)
	}
	text, err = run("-o", "json")
	var back status.Status
	if err != nil || json.Unmarshal([]byte(text), &back) != nil || back.Guests[0].Name != "web1" {
		t.Errorf("error %v, JSON\n%s", err, text)
	}
	if _, err = run("--interval", "1ms"); statusOf(err) != exitUsage {
		t.Errorf("--interval 1ms: %v", err)
	}
	d.err = errors.New("nobody listens")
	if _, err = run("--once"); err == nil || statusOf(err) != exitFailed {
		t.Errorf("the daemon does not answer: %v", err)
	}
}
