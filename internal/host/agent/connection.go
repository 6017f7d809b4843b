package agent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	"github.com/numavisor/numavisor/internal/fleet"
)

// Limits of the protocol's messages.
const (
	answerTime = 30 * time.Second // of one request
	maxAnswer  = 1 << 20          // bytes of an answer other than a desired state
	maxDesired = 64 << 20         // bytes of a desired state: thousands of VMs
)

// connection is the one to one of the fleet's servers. HTTP/2 multiplexes its requests.
type connection struct {
	http *http.Client
	quit func()

	mu   sync.Mutex
	base string // URL
}

// server returns the URL of the server.
func (c *connection) server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base
}

// next changes to the next one of the servers.
func (c *connection) next(servers []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = servers[(slices.Index(servers, c.base)+1)%len(servers)]
}

// identity is the certificate that the connection uses; renewing replaces it.
type identity struct {
	mu     sync.Mutex
	member Member
}

func (i *identity) get() Member {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.member
}

func (i *identity) set(m Member) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.member = m
}

// dial returns a connection. It does not connect yet.
func dial(of *identity) (*connection, error) {
	m := of.get()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.CA)) {
		return nil, errors.New("the CA of the fleet's servers is no certificate; join again")
	}
	t := &http.Transport{
		ForceAttemptHTTP2: true,
		MaxConnsPerHost:   2, // a second one while a broken one is noticed
		IdleConnTimeout:   time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		// A connection that is half open answers no ping.
		// A small table of headers takes less of the server's memory, for each of thousands of hosts.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second,
			WriteByteTimeout: 20 * time.Second, MaxEncoderHeaderTableSize: 256},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				now := of.get()
				pair, err := now.pair()
				return &pair, err
			}},
	}
	return &connection{base: m.Server, http: &http.Client{Transport: t}, quit: t.CloseIdleConnections}, nil
}

// RefusedError means that the server answered a request with an error.
type RefusedError struct {
	Status int // HTTP
	Why    string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server refuses (%d): %s", e.Status, e.Why)
}

// send makes one request, and decodes its answer if there is somewhere to put it.
func (c *connection) send(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the answer of the server %s: %w", c.server(), err)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the answer of the server %s to %s: %w", c.server(), path, err)
	}
	return nil
}

// open makes a request and returns its answer, which is no error.
func (c *connection) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var send io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding a message for %s: %w", path, err)
		}
		send = bytes.NewReader(data)
	}
	base := c.server()
	r, err := http.NewRequestWithContext(ctx, method, base+path, send)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if at, ok := errors.AsType[*url.Error](err); ok {
			err = at.Err // the rest is in the text below
		}
		return nil, fmt.Errorf("the server %s: %w", base, err)
	}
	if answer.StatusCode >= 300 {
		defer func() { _ = answer.Body.Close() }()
		return nil, refusal(answer)
	}
	return answer, nil
}

// refusal reads a problem document (RFC 9457).
func refusal(answer *http.Response) error {
	var p struct{ Title, Detail string }
	data, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	why := http.StatusText(answer.StatusCode)
	if json.Unmarshal(data, &p) == nil && p.Title+p.Detail != "" {
		why = p.Title
		if p.Detail != "" {
			why = p.Detail
		}
	}
	return &RefusedError{answer.StatusCode, why}
}

// errSilent means that the server sent nothing for too long.
var errSilent = errors.New("the server sent nothing for too long")

// follow passes desired states on, until the stream ends, or is silent for too long. The
// stream's first state is marked.
func (c *connection) follow(ctx context.Context, silence time.Duration, pass func(d fleet.Desired, first bool)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()
	answer, err := c.open(ctx, http.MethodGet, "/agent/v1/desired", nil)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(make([]byte, 64<<10), maxDesired)
	for first := true; lines.Scan(); first = false {
		watch.Reset(silence)
		var d fleet.Desired
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return fmt.Errorf("a desired state from the server %s: %w", c.server(), err)
		}
		pass(d, first)
	}
	if err := lines.Err(); err != nil {
		return causeOf(ctx, fmt.Errorf("the stream of the server %s: %w", c.server(), err))
	}
	return fmt.Errorf("the server %s ended the stream", c.server())
}

// causeOf prefers the reason for which this side ended a request.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// renew gets a new certificate, and stores it.
func (c *connection) renew(ctx context.Context, of *identity, folder string) error {
	m := of.get()
	key, request, err := newKey(m.Host)
	if err != nil {
		return err
	}
	var got agentapi.Joined
	if err := c.send(ctx, http.MethodPost, "/agent/v1/renew", agentapi.Renew{CSR: request}, &got); err != nil {
		return fmt.Errorf("renewing the host's certificate: %w", err)
	}
	next := m
	next.Key, next.Certificate = key, got.Certificate
	if got.CA != "" {
		next.CA = got.CA
	}
	if err := next.check(nil); err != nil {
		return fmt.Errorf("renewing the host's certificate: %w", err)
	}
	if err := next.store(folder); err != nil {
		return err
	}
	of.set(next)
	return nil
}

// note stores the servers that the fleet has named.
func (i *identity) note(servers []string, folder string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(servers) == 0 || slices.Equal(servers, i.member.Others) {
		return nil
	}
	next := i.member
	next.Others = slices.Clone(servers)
	if err := next.store(folder); err != nil {
		return err
	}
	i.member = next
	return nil
}
