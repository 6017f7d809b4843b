package main

import (
	"bytes"
	"context"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// answering is a daemon that only returns a status.
type answering struct {
	hostapi.Daemon
	status status.Status
}

func (d *answering) Status(context.Context) (status.Status, error) { return d.status, nil }

// A command that moves VMs while the daemon is paused says so.
func TestNoteDaemon_Paused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d := &answering{}
	server := httptest.NewUnstartedServer(hostapi.Handler(d))
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = l
	server.Start()
	defer server.Close()
	until := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		pause *status.Pause
		want  string
	}{
		{nil, ""},
		{&status.Pause{}, "note: the daemon is paused until 'numavisor resume'; apply acts all the same\n"},
		{&status.Pause{Until: until, Why: "load test"},
			"note: the daemon is paused until 2026-03-01T14:00:00Z (load test); apply acts all the same\n"},
	} {
		d.status.Pause = c.pause
		apply := applyCommand()
		var notes bytes.Buffer
		apply.SetErr(&notes)
		apply.SetContext(context.Background())
		new(hostFlags).noteDaemon(apply, socket, policy.Policy{})
		if got := notes.String(); !strings.HasSuffix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("pause %+v: %q, want %q", c.pause, got, c.want)
		}
	}
}
