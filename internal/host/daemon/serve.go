package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/lock"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// ErrRunning means that a daemon runs on this host already.
var ErrRunning = errors.New("another daemon runs on this host")

// Listen makes the daemon's socket, for root and its group only. It fails with
// ErrRunning where a daemon answers there; the socket of one that was killed
// is replaced. Close the returned listener to give it up.
func Listen(path string) (net.Listener, error) {
	if err := lock.Folder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("the daemon's socket: %w; run as root, or choose another place with --socket", err)
	}
	held, err := lock.Try(path + ".lock")
	switch {
	case errors.Is(err, lock.ErrTaken):
		return nil, fmt.Errorf("%w: %w", ErrRunning, err)
	case err != nil:
		return nil, fmt.Errorf("the daemon's socket: %w; run as root, or choose another place with --socket", err)
	}
	if err := removeSocket(path); err != nil {
		held.Close()
		return nil, fmt.Errorf("the daemon's socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		held.Close()
		return nil, fmt.Errorf("the daemon's socket: %w", err)
	}
	return &locked{l, held}, os.Chmod(path, 0o660)
}

// removeSocket removes the socket that a killed daemon left, and nothing else.
func removeSocket(path string) error {
	switch found, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is there and is no socket; choose another place with --socket", path)
	}
	return os.Remove(path)
}

// locked holds the lock of its socket until it is closed.
type locked struct {
	net.Listener
	lock io.Closer
}

func (l *locked) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

// Serve answers on a listener until ctx ends. pages are served beside the daemon's own: metrics.
func (d *Daemon) Serve(ctx context.Context, l net.Listener, pages map[string]http.Handler) error {
	mux := hostapi.Handler(d)
	for path, page := range pages {
		mux.Handle(path, page)
	}
	return serve(ctx, l, mux)
}

// ServeMetrics answers on a listener that others can reach: pages only, no orders.
func ServeMetrics(ctx context.Context, l net.Listener, page http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	return serve(ctx, l, mux)
}

func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 1 << 16}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answering on %s: %w", l.Addr(), err)
	}
	return nil
}

// Status is the daemon's view of this moment.
func (d *Daemon) Status(ctx context.Context) (r status.Status, err error) {
	err = d.tell(ctx, func(s *state) { r = s.report() })
	return r, err
}

// Inventory is the host as the next plan would have it: as it was last looked
// at, with what guests and nodes asked for lately.
func (d *Daemon) Inventory(ctx context.Context) (h inventory.Host, err error) {
	err = d.order(ctx, func(s *state) error {
		if s.looked.IsZero() {
			return &hostapi.Error{Status: http.StatusServiceUnavailable, Err: errors.New("the daemon has not looked at the host yet")}
		}
		h = s.withLoads()
		h.Topology.Nodes = slices.Clone(h.Topology.Nodes) // the loop writes to its own
		return nil
	})
	return h, err
}

// Accept has an advised move made, mode, pause and windows notwithstanding.
func (d *Daemon) Accept(ctx context.Context, id string) error {
	return d.order(ctx, func(s *state) error { return s.accept(id) })
}

// Cancel has a move on its way undone, or drops one that waits. It is no failure of the move.
func (d *Daemon) Cancel(ctx context.Context, id string) error {
	return d.order(ctx, func(s *state) error { return s.abandon(id) })
}

// ErrForgetful means that an order is in force, but could not be kept.
var ErrForgetful = errors.New("a restart of the daemon would not know of it, for the journal cannot be written")

// Pause holds all moves, the one on its way too, for a time, or until Resume.
// The error is ErrForgetful where moves are held, but would not be after a restart.
func (d *Daemon) Pause(ctx context.Context, length time.Duration, why string) error {
	if err := (hostapi.PauseOrder{For: length}).Validate(); err != nil {
		return &hostapi.Error{Status: http.StatusBadRequest, Err: err}
	}
	return d.order(ctx, func(s *state) error {
		p := status.Pause{Since: time.Now(), Why: why}
		if length > 0 {
			p.Until = p.Since.Add(length)
		}
		return s.halt(p)
	})
}

// Resume ends a pause. The error is ErrForgetful where a restart would pause again.
func (d *Daemon) Resume(ctx context.Context) error {
	return d.order(ctx, func(s *state) error { return s.resume() })
}

func (d *Daemon) order(ctx context.Context, do func(*state) error) (err error) {
	if asked := d.tell(ctx, func(s *state) { err = do(s) }); asked != nil {
		return asked
	}
	return err
}
