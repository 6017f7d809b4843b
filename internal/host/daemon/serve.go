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
	"time"

	"golang.org/x/sys/unix"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/lock"
)

// ErrRunning means that a daemon already runs on this host.
var ErrRunning = errors.New("another daemon runs on this host")

// Listen makes the daemon's socket, for root and its group only. It fails with
// ErrRunning if a daemon answers there; it replaces the socket of a killed
// daemon. Close the returned listener to release it.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := lock.Folder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("the daemon's socket: %w; run as root, or choose another path with --socket", err)
	}
	held, err := lock.Try(path + ".lock")
	switch {
	case errors.Is(err, lock.ErrTaken):
		return nil, fmt.Errorf("%w: %w", ErrRunning, err)
	case err != nil:
		return nil, fmt.Errorf("the daemon's socket: %w; run as root, or choose another path with --socket", err)
	}
	if err := removeSocket(ctx, path); err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("the daemon's socket: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("the daemon's socket: %w", err)
	}
	return &locked{l, held}, os.Chmod(path, 0o660)
}

// removeSocket removes the socket of a killed daemon, and nothing else: no
// socket at which a program listens.
func removeSocket(ctx context.Context, path string) error {
	switch found, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s exists and is no socket; choose another path with --socket", path)
	}
	// The kernel refuses a connection to a socket only if no program has it open.
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("another program uses %s; choose another path with --socket", path)
	}
	return os.Remove(path)
}

// locked holds the lock of its socket until it is closed.
type locked struct {
	net.Listener
	lock io.Closer
}

func (l *locked) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

// Serve answers on a listener until ctx ends. It serves pages in addition to
// the daemon's own routes: metrics, and the fleet's API for this host. The contexts of their requests have the Peer.
func (d *Daemon) Serve(ctx context.Context, l net.Listener, pages map[string]http.Handler) error {
	mux := hostapi.Handler(d)
	for path, page := range pages {
		mux.Handle(path, page)
	}
	return serve(ctx, l, mux)
}

// ServeMetrics answers on a listener that others can reach: pages only, no
// orders.
func ServeMetrics(ctx context.Context, l net.Listener, page http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	return serve(ctx, l, mux)
}

func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: timed(h), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		MaxHeaderBytes: 1 << 16, ConnContext: withPeer,
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answering on %s: %w", l.Addr(), err)
	}
	return nil
}

// peerKey is the key of a context's peer.
type peerKey struct{}

// withPeer adds to the context of a connection through a Unix socket which process has made it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	unixConn, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return ctx // the connection has ended
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		peer, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peer == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, *peer)
}

// Peer returns the process that has made the connection of a request, as it was then; ok is false if it is not known.
func Peer(ctx context.Context) (peer unix.Ucred, ok bool) {
	peer, ok = ctx.Value(peerKey{}).(unix.Ucred)
	return peer, ok
}
