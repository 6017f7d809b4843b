package hostapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// ErrNotRunning means that no daemon answers at the socket.
var ErrNotRunning = errors.New("no daemon answers")

// ErrNoAnswer means that a daemon accepted the connection and did not answer in
// time: it is stopped or overloaded. An order may still take effect later.
var ErrNoAnswer = errors.New("the daemon does not answer")

// answerTime limits one request, including the connection. The daemon answers
// from memory; an order waits for one write of the journal.
const answerTime = 10 * time.Second

// maxAnswer limits how much of an answer is read: a status of thousands of
// guests fits.
const maxAnswer = 64 << 20

// Client sends requests to a daemon through its socket.
type Client struct {
	socket  string
	http    http.Client
	timeout time.Duration
}

var _ Daemon = (*Client)(nil)

// Dial returns a client of the daemon at a socket. It does not connect yet.
func Dial(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{
		socket:  socket,
		http:    http.Client{Transport: &http.Transport{DialContext: dial}},
		timeout: answerTime,
	}
}

// Status implements Daemon.
func (c *Client) Status(ctx context.Context) (r status.Status, err error) {
	return r, c.ask(ctx, http.MethodGet, "/v1/status", nil, &r)
}

// Inventory implements Daemon.
func (c *Client) Inventory(ctx context.Context) (h inventory.Host, err error) {
	return h, c.ask(ctx, http.MethodGet, "/v1/inventory", nil, &h)
}

// Series implements Daemon.
func (c *Client) Series(ctx context.Context, kind, name string) (r history.Series, err error) {
	return r, c.ask(ctx, http.MethodGet, "/v1/series/"+url.PathEscape(kind)+"/"+url.PathEscape(name), nil, &r)
}

// Accept implements Daemon.
func (c *Client) Accept(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/v1/accept/"+url.PathEscape(id), nil, nil)
}

// Cancel implements Daemon.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/v1/cancel/"+url.PathEscape(id), nil, nil)
}

// Pause implements Daemon.
func (c *Client) Pause(ctx context.Context, length time.Duration, why string) error {
	return c.ask(ctx, http.MethodPost, "/v1/pause", PauseOrder{length, why}, nil)
}

// Resume implements Daemon.
func (c *Client) Resume(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/v1/resume", nil, nil)
}

// ask sends one request and decodes its answer into a value, if there is one.
func (c *Client) ask(ctx context.Context, method, path string, send, into any) error {
	body, err := json.Marshal(send)
	if err != nil {
		return fmt.Errorf("encoding the request %s: %w", path, err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making the request %s: %w", path, err)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return c.unanswered(method, time.Since(began), err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return c.unanswered(method, time.Since(began), err)
	}
	if answer.StatusCode != http.StatusOK {
		return c.failed(path, answer, data)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		const text = "the answer of the daemon at %s cannot be decoded: %w; check that both have the same version"
		return fmt.Errorf(text, c.socket, err)
	}
	return nil
}

// unanswered explains why a request got no answer.
func (c *Client) unanswered(method string, waited time.Duration, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		const text = "%w at %s: start it with 'numavisor daemon', or name its socket with --socket"
		return fmt.Errorf(text, ErrNotRunning, c.socket)
	case errors.Is(err, context.DeadlineExceeded):
		later := ""
		if method == http.MethodPost {
			later = "; it may still carry out an order later"
		}
		return fmt.Errorf("%w at %s within %v: check that its process is not stopped%s", ErrNoAnswer, c.socket,
			waited.Round(100*time.Millisecond), later)
	}
	return fmt.Errorf("asking the daemon at %s: %w", c.socket, err)
}

// failed returns the error in an answer other than 200.
func (c *Client) failed(path string, answer *http.Response, data []byte) error {
	var no document
	err := fmt.Errorf("the daemon at %s answers %s to %s", c.socket, answer.Status, path)
	if json.Unmarshal(data, &no) == nil && no.Error.Message != "" {
		err = errors.New(no.Error.Message)
	}
	return &Error{answer.StatusCode, err}
}
