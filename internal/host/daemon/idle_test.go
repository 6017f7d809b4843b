package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
)

// pipes is a listener in memory: waiting for it means waiting on the test's
// clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// The server closes a connection without a request, or with an incomplete one:
// each takes a file descriptor, and anyone can reach the metrics.
func TestServe_ClosesIdleConnections(t *testing.T) {
	for name, request := range map[string]string{
		"nothing":                "",
		"one request":            "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n",
		"an incomplete header":   "GET /metrics HTTP/1.1\r\nHo",
		"a body that never ends": "GET /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			l, served := make(pipes), make(chan error)
			page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				fmt.Fprintln(w, "numavisor_samples_total 1")
			})
			go func() { served <- daemon.ServeMetrics(ctx, l, page) }()
			here, there := net.Pipe()
			l <- there
			go func() { _, _ = io.WriteString(here, request) }()
			begin := time.Now()
			_ = here.SetReadDeadline(begin.Add(time.Hour))
			if _, err := io.Copy(io.Discard, bufio.NewReader(here)); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: open for %v: %v", name, time.Since(begin), err)
			}
			_ = here.Close()
			stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}
