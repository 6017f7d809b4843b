package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/server/auth"
)

// A server whose clock was ahead when it started needs another certificate before it has a quorum: the others do not
// accept the first one.
func TestServe_RenewsItsCertificateWithoutAQuorum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ca, err := auth.NewCA("fleet", now)
	if err != nil {
		t.Fatal(err)
	}
	at := func() string {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return "https://" + l.Addr().String()
	}
	c := config{Address: "127.0.0.1:0", Member: &member{Name: "a", Members: map[string]string{"a": at(), "b": at(),
		"c": at()}}}
	folder := t.TempDir()
	if err := makeFleet(t.Context(), io.Discard, folder, "", c, ca); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	command := runCommand()
	command.SetErr(io.Discard)
	go func() { ended <- serve(ctx, command, &options{folder: folder}) }()
	defer func() { cancel(); <-ended }()
	for written := false; ; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server ended: %v", err)
		default:
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(folder, peerFile), filepath.Join(folder, peerKeyFile))
		switch {
		case err != nil: // it starts
		case !written:
			written = true
			if err := c.certify(folder, ca, now.Add(3*time.Hour)); err != nil {
				t.Fatal(err)
			}
		case auth.Current(pair.Leaf, now):
			return
		case time.Since(now) > time.Minute:
			t.Fatal("its certificate is not valid yet")
		}
	}
}

// A server that was started with a clock three hours ahead gets a certificate that the others accept once the clock is
// right, and a server that runs for a year gets another one in time.
func TestRenewCertificate_WhenTheClockWasSet(t *testing.T) {
	now := time.Now()
	ca, err := auth.NewCA("fleet", now)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	c := config{Member: &member{Name: "a", Members: map[string]string{"a": "https://10.0.0.1:2380"}}}
	if err := c.certify(folder, ca, now.Add(3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, step := range []struct {
		what    string
		at      time.Time
		renewed bool
	}{
		{"the clock is right", now, true},
		{"a month later", now.Add(30 * 24 * time.Hour), false},
		{"eleven months later", now.Add(330 * 24 * time.Hour), true},
	} {
		before, key := read(peerFile), read(peerKeyFile)
		if err := c.renewCertificate(folder, ca, step.at); err != nil {
			t.Fatal(err)
		}
		if renewed := !bytes.Equal(before, read(peerFile)); renewed != step.renewed {
			t.Errorf("%s: renewed %v, want %v", step.what, renewed, step.renewed)
		}
		if !bytes.Equal(key, read(peerKeyFile)) {
			t.Errorf("%s: the key has changed", step.what)
		}
		if _, err := loadPair(folder); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
	}
}
