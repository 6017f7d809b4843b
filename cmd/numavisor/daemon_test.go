package main

import (
	"net"
	"strings"
	"testing"
)

// An invalid address is a usage error; an unavailable one is a failure.
func TestWhereMetricsCannotBeServed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for address, want := range map[string]int{
		taken.Addr().String(): exitFailed,
		"9177":                exitUsage,
		"::1:9177":            exitUsage,
		"127.0.0.1:70000":     exitUsage,
		":-1":                 exitUsage,
		":no such service":    exitUsage,
	} {
		l, err := listenPublic(t.Context(), address)
		if err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			t.Errorf("%s is listened on", address)
			continue
		}
		if got := statusOf(err); got != want || !strings.Contains(err.Error(), "--metrics") {
			t.Errorf("%s: exit status %d, want %d: %v", address, got, want, err)
		}
	}
	l, err := listenPublic(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
