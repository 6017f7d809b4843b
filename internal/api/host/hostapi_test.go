package hostapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// recorder is a daemon that records its orders and fails as the test says.
type recorder struct {
	orders []string
	err    error
}

func (r *recorder) order(format string, args ...any) error {
	r.orders = append(r.orders, fmt.Sprintf(format, args...))
	return r.err
}

func (r *recorder) Status(context.Context) (status.Status, error) {
	return status.Status{Host: "h1"}, r.order("status")
}

func (r *recorder) Inventory(context.Context) (inventory.Host, error) {
	return inventory.Host{Name: "h1"}, r.order("inventory")
}

func (r *recorder) Series(_ context.Context, kind, name string) (history.Series, error) {
	return history.Series{}, r.order("series of %s %q", kind, name)
}
func (r *recorder) Accept(_ context.Context, id string) error { return r.order("accept %q", id) }
func (r *recorder) Cancel(_ context.Context, id string) error { return r.order("cancel %q", id) }
func (r *recorder) Resume(context.Context) error              { return r.order("resume") }
func (r *recorder) Pause(_ context.Context, length time.Duration, why string) error {
	return r.order("pause for %v: %s", length, why)
}

// serve answers for a daemon at a socket of the test's.
func serve(t *testing.T, d Daemon) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "daemon.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(Handler(d))
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return Dial(socket)
}

// call is one request of the protocol.
type call struct {
	name string
	make func(context.Context, Daemon) error
	want string // the order that the daemon receives
}

func calls() []call {
	return []call{
		{"status", func(ctx context.Context, d Daemon) error { _, err := d.Status(ctx); return err }, "status"},
		{"inventory", func(ctx context.Context, d Daemon) error { _, err := d.Inventory(ctx); return err },
			"inventory"},
		{"series", func(ctx context.Context, d Daemon) error {
			_, err := d.Series(ctx, "guest", "a/b c")
			return err
		}, `series of guest "a/b c"`},
		{"accept", func(ctx context.Context, d Daemon) error { return d.Accept(ctx, "a1") }, `accept "a1"`},
		{"cancel", func(ctx context.Context, d Daemon) error { return d.Cancel(ctx, "m/1") }, `cancel "m/1"`},
		{"pause", func(ctx context.Context, d Daemon) error {
			return d.Pause(ctx, time.Hour, "a test")
		}, "pause for 1h0m0s: a test"},
		{"resume", func(ctx context.Context, d Daemon) error { return d.Resume(ctx) }, "resume"},
	}
}

func TestClient_ReachesEachOperation(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			d := &recorder{}
			if err := c.make(t.Context(), serve(t, d)); err != nil {
				t.Fatal(err)
			}
			if len(d.orders) != 1 || d.orders[0] != c.want {
				t.Errorf("the daemon received %q, want %q", d.orders, c.want)
			}
		})
	}
}

func TestClient_KeepsStatusAndTextOfErrors(t *testing.T) {
	conflict := &Error{http.StatusConflict, errors.New("nothing is paused")}
	for _, test := range []struct {
		err  error
		want int
	}{
		{conflict, http.StatusConflict},
		{fmt.Errorf("resume: %w", conflict), http.StatusConflict},
		{&Error{http.StatusServiceUnavailable, errors.New("stopping")}, http.StatusServiceUnavailable},
		{errors.New("disk full"), http.StatusInternalServerError},
	} {
		for _, c := range calls() {
			err := c.make(t.Context(), serve(t, &recorder{err: test.err}))
			got, ok := errors.AsType[*Error](err)
			if !ok || got.Status != test.want || got.Error() != test.err.Error() {
				t.Errorf("%s: got %#v, want status %d and text %q", c.name, err, test.want, test.err)
			}
		}
	}
}

// A daemon that is stopped (SIGSTOP) still has its socket: the kernel accepts.
func TestClient_GivesUpOnAFrozenDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "daemon.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, c := range calls() {
		client := Dial(socket)
		if client.timeout > time.Minute || client.timeout <= 0 {
			t.Fatalf("a call may take %v", client.timeout)
		}
		client.timeout = 20 * time.Millisecond
		// The context has no deadline, like that of a command.
		if err := c.make(context.Background(), client); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s: got %v, want ErrNoAnswer", c.name, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		err := c.make(ctx, client)
		cancel()
		if !errors.Is(err, ErrNoAnswer) || strings.Contains(err.Error(), "http://") {
			t.Errorf("%s in the caller's time: got %v, want ErrNoAnswer without the URL", c.name, err)
		}
	}
}

func TestClient_ReportsThatNoDaemonRuns(t *testing.T) {
	for _, c := range calls() {
		if err := c.make(t.Context(), Dial(filepath.Join(t.TempDir(), "none.sock"))); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%s: got %v, want ErrNotRunning", c.name, err)
		}
	}
}

func TestHandler_RefusesMalformedPauses(t *testing.T) {
	bodies := []string{
		`null`, ` null `, `{"for": "2h"}`, `{"for_ns": -1}`, `{"for_ns": 1e30}`, `{"for_ns": "2h"}`,
		`3600`, `[]`, `{} {}`, ``,
		`{"why":"` + strings.Repeat("x", maxOrder) + `"}`,
	}
	for _, body := range bodies {
		d := &recorder{}
		w := httptest.NewRecorder()
		Handler(d).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/pause", strings.NewReader(body)))
		if w.Code != http.StatusBadRequest || len(d.orders) > 0 {
			t.Errorf("body %.20q: status %d, orders %q; want 400 and no order", body, w.Code, d.orders)
		}
	}
}
