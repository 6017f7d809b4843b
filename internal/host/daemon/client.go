package daemon

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

// ErrNotRunning means that no daemon answers.
var ErrNotRunning = errors.New("no daemon answers")

// Client asks a daemon through its socket.
type Client struct {
	socket string
	http   http.Client
}

// Dial returns a client of the daemon behind a socket. Nothing is asked yet.
func Dial(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 30 * time.Second}}
}

// Status asks for the daemon's view of this moment.
func (c *Client) Status(ctx context.Context) (r status.Status, err error) {
	return r, c.ask(ctx, http.MethodGet, "/v1/status", nil, &r)
}

// Inventory asks for the host as the next plan would have it.
func (c *Client) Inventory(ctx context.Context) (h inventory.Host, err error) {
	return h, c.ask(ctx, http.MethodGet, "/v1/inventory", nil, &h)
}

// Series asks for the history of "guest" NAME or "node" ID.
func (c *Client) Series(ctx context.Context, kind, name string) (r history.Series, err error) {
	return r, c.ask(ctx, http.MethodGet, "/v1/series/"+url.PathEscape(kind)+"/"+url.PathEscape(name), nil, &r)
}

// Accept has an advised move made.
func (c *Client) Accept(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/v1/accept/"+url.PathEscape(id), nil, nil)
}

// Cancel stops a move on its way.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/v1/cancel/"+url.PathEscape(id), nil, nil)
}

// Pause holds all moves for a time; 0: until Resume.
func (c *Client) Pause(ctx context.Context, length time.Duration, why string) error {
	return c.ask(ctx, http.MethodPost, "/v1/pause", PauseOrder{length, why}, nil)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/v1/resume", nil, nil)
}

// mostAnswer bounds what is read of an answer: a status of thousands of guests fits.
const mostAnswer = 64 << 20

func (c *Client) ask(ctx context.Context, method, path string, send, into any) error {
	body, err := json.Marshal(send)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%w at %s: start it with 'numavisor daemon', or name its socket with --socket", ErrNotRunning, c.socket)
		}
		return fmt.Errorf("asking the daemon at %s: %w", c.socket, err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("asking the daemon at %s: %w", c.socket, err)
	}
	if answer.StatusCode != http.StatusOK {
		var no refusal
		if json.Unmarshal(data, &no) != nil || no.Error.Message == "" {
			return fmt.Errorf("the daemon at %s answers %s to %s", c.socket, answer.Status, path)
		}
		return errors.New(no.Error.Message)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the daemon at %s answers what is not understood: %w; are both of one version?", c.socket, err)
	}
	return nil
}
