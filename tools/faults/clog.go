package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// clogging is the number of connections of each sort that clog opens.
const clogging = 100

// clog opens connections to a server that do nothing: some end in the midst of the handshake, some send no request, and
// some send one slowly and never all of it. The server must answer others. Connections that it ends are opened again.
func (f *aFleet) clog(ctx context.Context, random *rand.Rand) fault {
	server := random.IntN(len(f.servers))
	var open sync.WaitGroup
	end := make(chan struct{})
	return fault{name: "clog " + serverName(server),
		begin: func() error {
			if err := f.answers(ctx, server); err != nil {
				return err // not because of these connections
			}
			for n := range 3 * clogging {
				open.Go(func() {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					open.Go(func() {
						select {
						case <-end:
							cancel()
						case <-ctx.Done():
						}
					})
					for ctx.Err() == nil {
						f.idle(ctx, server, n%3)
						time.Sleep(100 * time.Millisecond) // it may refuse connections
					}
				})
			}
			return nil
		},
		during: func(ctx context.Context) error { return f.answers(ctx, server) },
		end: func() error {
			close(end)
			open.Wait()
			return nil
		}}
}

// answers returns once a server has answered a read. On a busy machine a start or a read takes seconds.
func (f *aFleet) answers(ctx context.Context, server int) error {
	for end := time.Now().Add(3 * requestTime); ; time.Sleep(50 * time.Millisecond) {
		_, err := f.readWithin(ctx, f.clients[server])
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(end) {
			return fmt.Errorf("a read at s%d: %w", server, err)
		}
	}
}

// idle holds one connection open until ctx ends, or the server ends it.
func (f *aFleet) idle(ctx context.Context, server, sort int) {
	plain, err := new(net.Dialer).DialContext(ctx, "tcp", f.api(server))
	if err != nil {
		return // a fault
	}
	defer func() { _ = plain.Close() }()
	defer context.AfterFunc(ctx, func() { _ = plain.Close() })()
	if sort == 0 {
		_, _ = plain.Read(make([]byte, 1)) // until the server ends it
		return
	}
	host, _, _ := net.SplitHostPort(f.api(server))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(f.ca))
	c := tls.Client(plain, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: host})
	if c.HandshakeContext(ctx) != nil {
		return
	}
	if sort == 2 {
		const request = "POST /v1/vms HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\n" +
			"Content-Length: 1000\r\n\r\n{"
		for i := range request {
			if _, err := c.Write([]byte{request[i]}); err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	_, _ = c.Read(make([]byte, 1))
}
