package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
)

// pipeListener accepts one connection, whose deadlines follow the test's clock.
type pipeListener struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (*pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "a pipe", Net: "unix"} }

// servePipe serves a page, and returns the client's end of a connection.
func servePipe(t *testing.T, page http.HandlerFunc) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	l := &pipeListener{make(chan net.Conn, 1), make(chan struct{})}
	l.conn <- server
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- daemon.ServeMetrics(ctx, l, page) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = client.Close()
	})
	return client
}

// request asks for the page.
func request(t *testing.T, client net.Conn) {
	t.Helper()
	if _, err := io.WriteString(client, "GET /metrics HTTP/1.1\r\nHost: daemon\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// An operation on a VM can take minutes: its answer arrives all the same, and the connection serves the next request.
func TestServe_AnswersAfterMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ name, body string }{{"with a body", "deleted"}, {"without one", ""}} {
			client := servePipe(t, func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(5 * time.Minute)
				_, _ = io.WriteString(w, c.body)
			})
			in := bufio.NewReader(client)
			for range 2 {
				request(t, client)
				answer, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("%s: the answer after 5 minutes: %v", c.name, err)
				}
				body, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode != http.StatusOK || string(body) != c.body {
					t.Errorf("%s: answered %d, %q: %v", c.name, answer.StatusCode, body, err)
				}
				_ = answer.Body.Close()
			}
		}
	})
}

// A client that does not read its answer does not hold a handler for ever.
func TestServe_GivesUpAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := make(chan error, 1)
		client := servePipe(t, func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
			written <- err
		})
		request(t, client)
		began := time.Now()
		err := <-written
		var late net.Error
		if !errors.As(err, &late) || !late.Timeout() || time.Since(began) != time.Minute {
			t.Errorf("writing ended after %v: %v", time.Since(began), err)
		}
	})
}
