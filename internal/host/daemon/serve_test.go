package daemon_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// serve answers at a socket until its result is called.
func (w *world) serve(socket string) (end func()) {
	w.t.Helper()
	l, err := daemon.Listen(w.t.Context(), socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	served := make(chan error)
	go func() { served <- w.d.Serve(ctx, l, nil) }()
	return func() {
		stop()
		if err := <-served; err != nil {
			w.t.Error(err)
		}
		_ = l.Close() // Serve may have closed it
	}
}

// Through the socket: the inventory has the measured loads, so that a plan made
// from it elsewhere is the daemon's own plan; orders are obeyed and refused.
func TestServe_InventoryHasTheLoopsLoads(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		// From here on no time passes: waiting for the network stops the test's
		// clock.
		socket := filepath.Join(t.TempDir(), "daemon.sock")
		client := hostapi.Dial(socket)
		if _, err := client.Inventory(t.Context()); !errors.Is(err, hostapi.ErrNotRunning) {
			t.Fatalf("no socket: %v", err)
		}
		defer w.serve(socket)()
		h, err := client.Inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range h.Guests {
			if g.Seen.Load == nil || g.Seen.Load.CPU <= 0 {
				t.Errorf("load of %s: %+v", g.Name, g.Seen.Load)
			}
		}
		s, err := client.Status(t.Context())
		if err != nil || len(h.Load) != 4 || len(s.Advice) != 1 {
			t.Fatalf("loads of %d nodes, %d moves advised: %v", len(h.Load), len(s.Advice), err)
		}
		round, err := balance.Plan(balance.Request{Host: &h, Now: h.Taken, Lasting: true})
		if err != nil || len(round.Moves) != 1 || round.Moves[0].String() != s.Advice[0].Move.String() {
			t.Errorf("planned of the inventory: %+v, the daemon: %v: %v", round.Moves, s.Advice[0].Move, err)
		}
		if err := client.Pause(t.Context(), time.Hour, "a test"); err != nil {
			t.Error(err)
		}
		if s, err := client.Status(t.Context()); err != nil || s.Held == "" || len(w.entries(journal.Paused)) != 1 {
			t.Errorf("paused: held %q: %v", s.Held, err)
		}
		if err := client.Accept(t.Context(), "nonsense"); err == nil {
			t.Error("an unknown move was accepted")
		}
	})
}

// Listen replaces the socket of a killed daemon, and no other file.
func TestListen_ReplacesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := daemon.Listen(t.Context(), file)
	if err == nil {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(file); err == nil || !strings.Contains(err.Error(), "is no socket") ||
		string(text) != "content" {
		t.Errorf("file is %q, error %v", text, err)
	}
	left := filepath.Join(t.TempDir(), "left")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = daemon.Listen(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Listen leaves the socket of another program alone: a wrong --socket must not
// cut that program off.
func TestListen_LeavesTheSocketOfAnotherProgram(t *testing.T) {
	stream, packets := filepath.Join(t.TempDir(), "stream"), filepath.Join(t.TempDir(), "packets")
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: stream, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	log, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: packets, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	for path, network := range map[string]string{stream: "unix", packets: "unixgram"} {
		l, err := daemon.Listen(t.Context(), path)
		if err == nil {
			t.Errorf("%s: the daemon took the place of another program", network)
			_ = l.Close()
			continue
		}
		if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "--socket") {
			t.Errorf("%s: error is %v; want one that names the socket and the flag", network, err)
		}
		conn, err := net.Dial(network, path)
		if err != nil {
			t.Errorf("%s: the other program is cut off: %v", network, err)
			continue
		}
		_ = conn.Close()
	}
}

// A malformed order is refused: it must not pause the daemon until an operator
// resumes it.
func TestServe_RefusesAMalformedPause(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.start()
		defer w.end()
		socket := filepath.Join(t.TempDir(), "daemon.sock")
		defer w.serve(socket)()
		asking := &http.Client{
			Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) {
					return net.Dial("unix",
						socket)
				},
			},
		}
		defer asking.CloseIdleConnections()
		for _, order := range []string{`{"for": "2h"}`, `{"for_ns": -1}`, `{"for_ns": 1e30}`, `{"for_ns": "2h"}`,
			`3600`, `null`, `[]`, `{} {}`, ``, `{"why":"` + strings.Repeat("x", 1<<17) + `"}`} {
			answer, err := asking.Post("http://daemon/v1/pause", "application/json", strings.NewReader(order))
			if err != nil {
				t.Fatal(err)
			}
			if err := answer.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != http.StatusBadRequest || len(w.entries(journal.Paused)) != 0 {
				t.Errorf("%s: %s", order, answer.Status)
			}
		}
	})
}
