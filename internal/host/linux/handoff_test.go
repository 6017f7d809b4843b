package linux

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestSocketOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "org.example.port.0")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if got, err := Live.SocketOf(os.Getpid(), "org.example.port.0"); err != nil || got != path {
		t.Errorf("%q, %v; want %q", got, err, path)
	}
	if got, err := Live.SocketOf(os.Getpid(), "org.example.port.1"); err != nil || got != "" {
		t.Errorf("a port that does not exist: %q, %v", got, err)
	}
	if got, err := Live.SocketOf(os.Getppid(), "org.example.port.0"); err == nil && got != "" {
		t.Errorf("another process has it: %q", got)
	}
}

func TestRunTimeOf(t *testing.T) {
	pid := os.Getpid()
	if ran, err := Live.RunTimeOf(pid, pid); err != nil || ran <= 0 {
		t.Errorf("%v, %v", ran, err)
	}
	if _, err := Live.RunTimeOf(pid, 1<<30); !Gone(err) {
		t.Errorf("a thread that does not exist: %v", err)
	}
}
