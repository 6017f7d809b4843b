package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// observer is a daemon that only observes.
type observer struct{ operatetest.World }

func (o observer) Status(context.Context) (status.Status, error) {
	return status.Status{Host: "fake", Mode: policy.ModeAdvise}, nil
}
func (o observer) Inventory(ctx context.Context) (inventory.Host, error) {
	return o.Joined.Observe(ctx)
}
func (o observer) Policy(context.Context) (policy.Policy, error) {
	return policy.Policy{}.WithDefaults(), nil
}

// serveOneHost serves the API of a host in memory at a socket, and returns the URL.
func serveOneHost(t *testing.T) (w operatetest.World, url string) {
	t.Helper()
	w = operatetest.New(t, operatetest.Square, t.TempDir())
	w.Joined.Clock, w.Joined.Sources.Now = time.Now, time.Now
	ctx, cancel := context.WithCancel(context.Background())
	s := fleetofone.New(ctx, fleetofone.Options{Local: &w.Joined.Host, Daemon: observer{w}, Machines: plainMachines{},
		User: peerName, Version: "test", Grace: time.Millisecond})
	path := filepath.Join(t.TempDir(), "run", "daemon.sock")
	l, err := daemon.Listen(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- daemon.New(daemon.Options{Host: w.Joined}).Serve(ctx, l, map[string]http.Handler{"/": s})
	}()
	t.Cleanup(func() {
		cancel()
		s.Wait()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = l.Close() // Serve has closed it
	})
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	return w, "unix://" + path
}

// The commands for a fleet act through a daemon's socket on its host.
func TestRemote_CommandsActOnADaemonsSocket(t *testing.T) {
	w, url := serveOneHost(t)
	for _, step := range []struct {
		command string
		status  int
		says    string // a part of the output
	}{
		{"hosts", exitDone, "fake"},
		{"list", exitDone, "no VMs"},
		{"create --name web1 --vcpus 2 --memory 64M --dry-run", exitDone, "fake"},
		{"create --name web1 --vcpus 2 --memory 64M", exitDone, "running"},
		{"create --name web1 --vcpus 2 --memory 64M", exitFailed, "web1"},
		{"create --name wide --vcpus 64 --memory 64M", exitFailed, "wide"},
		{"create --name web2 --vcpus 1 --memory 64M --project shop", exitFailed, "needs a fleet"},
		{"list", exitDone, "web1"},
		{"show web1", exitDone, "why: "},
		{"resize web1 --vcpus 1", exitFailed, "stop it first"},
		{"stop web1", exitDone, "stopped"},
		{"resize web1", exitUsage, "--vcpus or --memory"},
		{"resize web1 --memory 64X", exitUsage, "64X"},
		{"resize web1 --vcpus 1 --memory 32M --dry-run", exitDone, "stopped"},
		{"resize web1 --memory 1T", exitFailed, "web1"},
		{"resize web1 --vcpus 1 --memory 32M", exitDone, "stopped"},
		{"start web1", exitDone, "running"},
		{"bind web1", exitDone, "running"},
		{"bind web1 --dry-run", exitDone, "web1"},
		{"alarms", exitDone, "no alarms"},
		{"balance", exitDone, "plan"},
		{"history web1", exitDone, "create-vm"},
		{"top --once", exitDone, "fake"},
		{"migrate web1", exitFailed, "needs a fleet"},
		{"host drain fake", exitFailed, "needs a fleet"},
		{"user list", exitFailed, "needs a fleet"},
		{"audit", exitFailed, "needs a fleet"},
		{"delete web1 --dry-run", exitDone, "would delete web1"},
		{"delete web1", exitDone, "web1: deleted"},
		{"list", exitDone, "no VMs"},
	} {
		var out, errs bytes.Buffer
		status := run(append(strings.Fields(step.command), "--server", url), &out, &errs)
		if status != step.status || !strings.Contains(out.String()+errs.String(), step.says) {
			t.Fatalf("numavisor %s: status %d, want %d with %q:\n%s%s", step.command, status, step.status, step.says,
				out.String(), errs.String())
		}
	}
	if _, exists := w.Guest("web1"); exists {
		t.Error("web1 is still on the host")
	}
	entries, err := w.Joined.Journal.Entries()
	if err != nil || len(entries) == 0 || !strings.Contains(entries[0].By, "uid ") {
		t.Errorf("the journal does not name the user of the process: %+v: %v", entries, err)
	}
}

// The description of the API is at the socket as well, which only root and its group may open.
func TestSocket_DescribesTheAPI(t *testing.T) {
	_, url := serveOneHost(t)
	path := strings.TrimPrefix(url, "unix://")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	for at, want := range map[string]string{
		"/v1/info": "application/json", "/openapi.json": "application/openapi+json", "/docs": "text/html; charset=utf-8",
		"/nothing": "application/problem+json",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://daemon"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: %s, not %s", at, got, want)
		}
		_ = answer.Body.Close()
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v: %v", info, err)
	}
}
