package auth

import (
	"crypto/tls"
	"testing"
	"time"
)

// A server may run for more than the life of a certificate, and its clock may be set while it runs.
func TestRenewing_IsValidByTheClock(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, err := NewCA("fleet", began)
	if err != nil {
		t.Fatal(err)
	}
	clock, made := began, 0
	get := Renewing(func(now time.Time) (*tls.Certificate, error) {
		made++
		return ca.ServerCertificate([]string{"127.0.0.1"}, now)
	}, func() time.Time { return clock })
	for _, at := range []struct {
		what string
		when time.Duration
		made int
	}{
		{"the start", 0, 1},
		{"a month later", 30 * 24 * time.Hour, 1},
		{"a year and a day later", 366 * 24 * time.Hour, 2},
		{"after the clock was set to the right time", 24 * time.Hour, 3},
		{"an hour later", 25 * time.Hour, 3},
	} {
		clock = began.Add(at.when)
		pair, err := get()
		if err != nil {
			t.Fatal(err)
		}
		if c := pair.Leaf; clock.Before(c.NotBefore) || clock.After(c.NotAfter) || made != at.made {
			t.Errorf("%s: certificate %d, valid from %s to %s; want certificate %d", at.what, made, c.NotBefore,
				c.NotAfter, at.made)
		}
	}
}
