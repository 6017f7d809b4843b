package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ctrl-C ends a command that waits for its input: a FIFO without a writer, or
// one whose writer says nothing.
func TestReadFile_EndsWithItsContext(t *testing.T) {
	fifo := newFIFO(t)
	for _, what := range []string{"no writer", "a silent writer"} {
		if what == "a silent writer" {
			w, err := os.OpenFile(fifo, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := readFile(ctx, fifo, io.ReadAll)
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v; wanted the context's end", what, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: still reads", what)
		}
	}
}

// A FIFO is read whole, though its writer comes late.
func TestReadFile_WaitsForTheWriterOfAFIFO(t *testing.T) {
	fifo := newFIFO(t)
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = os.WriteFile(fifo, []byte("all of it"), 0o600)
	}()
	text, err := readFile(t.Context(), fifo, io.ReadAll)
	if err != nil || string(text) != "all of it" {
		t.Errorf("%q, %v; wanted all of it", text, err)
	}
}

// A domain XML is read like all other files: up to a limit.
func TestReadXML_IsBounded(t *testing.T) {
	_, err := readFile(t.Context(), "/dev/zero", readXML)
	if err == nil || !strings.Contains(err.Error(), "more than 8 MiB") {
		t.Errorf("%v; wanted a refusal", err)
	}
}

func newFIFO(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
