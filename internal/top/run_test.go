package top

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

func TestRunShowsTheDaemonUntilQ(t *testing.T) {
	in, keyboard := io.Pipe()
	defer func() { _ = keyboard.Close() }()
	var out bytes.Buffer
	ended := make(chan error)
	d := &heard{}
	go func() { ended <- Run(t.Context(), d, time.Hour, in, &out) }()
	if _, err := keyboard.Write([]byte("q")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "numavisor") {
		t.Errorf("shown was %q", out.String())
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, keyboard := io.Pipe()
	defer func() { _ = keyboard.Close() }()
	ended := make(chan error)
	go func() { ended <- Run(ctx, &heard{}, time.Hour, in, io.Discard) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
