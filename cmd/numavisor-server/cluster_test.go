package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/server/auth"
)

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
	read := func() []byte {
		data, err := os.ReadFile(filepath.Join(folder, peerFile))
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
		before := read()
		if err := c.renewCertificate(folder, ca, step.at); err != nil {
			t.Fatal(err)
		}
		if renewed := !bytes.Equal(before, read()); renewed != step.renewed {
			t.Errorf("%s: renewed %v, want %v", step.what, renewed, step.renewed)
		}
	}
}
