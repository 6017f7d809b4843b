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
// some send one slowly and never all of it. The server must answer others.
func (f *aFleet) clog(ctx context.Context, random *rand.Rand) fault {
	server := random.IntN(len(f.servers))
	var open sync.WaitGroup
	end := make(chan struct{})
	return fault{name: "clog " + serverName(server),
		begin: func() error {
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
					f.idle(ctx, server, n%3)
				})
			}
			return nil
		},
		during: func(ctx context.Context) error {
			if _, err := f.readWithin(ctx, f.clients[server]); err != nil {
				return fmt.Errorf("a read at s%d: %w", server, err)
			}
			return nil
		},
		end: func() error {
			close(end)
			open.Wait()
			return nil
		}}
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
