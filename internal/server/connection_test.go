package server

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// raw opens a connection to the server, with a protocol.
func (r *rig) raw(protocol string) *tls.Conn {
	r.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca.CertificatePEM())
	c, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"),
		&tls.Config{RootCAs: roots, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// A client may send requests before it has read the server's settings, with a table of headers of the size that is
// HTTP/2's default.
func TestServe_RequestsBeforeItsSettingsAreRead(t *testing.T) {
	r := newRig(t)
	c := r.raw("h2")
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	to, encoder := http2.NewFramer(&out, c), hpack.NewEncoder(&block)
	if err := to.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	streams := []uint32{1, 3, 5}
	for _, id := range streams {
		block.Reset()
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"},
			{":authority", strings.TrimPrefix(r.url, "https://")}, {":path", "/v1/info"},
			{"user-agent", strings.Repeat("a", 100)}, {"x-first", strings.Repeat("b", 100)},
			{"x-second", strings.Repeat("c", 100)}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if err := to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true,
			EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	for answered := 0; answered < len(streams); {
		frame, err := to.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			t.Fatalf("the server ends the connection: %v", f.ErrCode)
		case *http2.DataFrame:
			if f.StreamEnded() {
				answered++
			}
		}
	}
}

// closed waits until the server has answered on a connection and closed it.
func closed(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if errors.Is(err, errTimeout) {
		t.Fatalf("the server waits for more: %s", answer)
	}
	return string(answer)
}

// errTimeout is the error of a deadline.
var errTimeout error = os.ErrDeadlineExceeded

// A client that sends slowly, or stops in the middle of a request, holds nothing for long.
func TestServe_SlowRequests(t *testing.T) {
	r := newUnstartedRig(t)
	r.setup.deadlines = Deadlines{Header: 2 * time.Second, Body: 200 * time.Millisecond}
	r.start()
	head := " HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nAuthorization: Bearer " + r.token + "\r\nContent-Type: "
	for _, test := range []struct{ name, sent, want string }{
		{"nothing", "", ""},
		{"a header without an end", "GET /v1/info HTTP/1.1\r\nHost: a\r\n", ""},
		{"a body without an end", "POST /v1/joins" + head + "application/json\r\n\r\n{", "HTTP/1.1 408"},
		{"a query without an end", "POST /api/v1/query" + head + "application/x-www-form-urlencoded\r\n\r\nquery",
			"HTTP/1.1"},
	} {
		c := r.raw("http/1.1")
		if _, err := io.WriteString(c, test.sent); err != nil {
			t.Fatal(err)
		}
		if got := closed(t, c); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q", test.name, got)
		}
	}
	bare, err := net.Dial("tcp", strings.TrimPrefix(r.url, "https://")) // no handshake
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bare.Close() }()
	closed(t, bare)
}

// A client that does not read its answers holds nothing for long either.
func TestServe_AnswersThatAreNotRead(t *testing.T) {
	r := newUnstartedRig(t)
	r.setup.deadlines = Deadlines{Answer: 200 * time.Millisecond}
	r.start()
	c := r.raw("http/1.1")
	const many = 500 // more than all buffers hold
	gone := make(chan error, 1)
	go func() {
		for range many {
			if _, err := fmt.Fprintf(c, "GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				gone <- err
				return
			}
		}
		for { // the server does not read any more; it closes the connection
			if _, err := io.WriteString(c, "GET /v1/info HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				gone <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the server waits for a client that does not read")
	}
}

// A stream of events over HTTP/2 stays while nothing happens: at least until its next sign of life.
func TestEvents_StayWhileNothingHappens(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits a quarter of a minute: 'go test ./internal/server'")
	}
	r := newRig(t)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+r.token)
	answer, err := r.anonymous().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.ProtoMajor != 2 {
		t.Fatalf("protocol %s: this tests nothing", answer.Proto)
	}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if lines.Text() == ":" {
			return
		}
	}
	t.Errorf("the stream has ended: %v", lines.Err())
}

// The clock of a server may be set while it runs: what it showed to clients meanwhile is no certificate for later.
func TestServe_ItsCertificateFollowsItsClock(t *testing.T) {
	r := newRig(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca.CertificatePEM())
	dial := func() error {
		d := tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
		c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "https://"))
		if err == nil {
			err = c.Close()
		}
		return err
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	r.setup.offset.Store(int64(400 * 24 * time.Hour)) // the first certificate has expired
	if err := dial(); err == nil {
		t.Error("a certificate that is not valid yet was accepted")
	}
	r.setup.offset.Store(0)
	if err := dial(); err != nil {
		t.Errorf("with the right time: %v", err)
	}
}
