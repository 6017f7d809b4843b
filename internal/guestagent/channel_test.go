package guestagent

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyTheHostIsHeard(t *testing.T) {
	for from, want := range map[unix.Sockaddr]bool{
		&unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 4711}:  true,
		&unix.SockaddrVM{CID: unix.VMADDR_CID_LOCAL, Port: 4711}: false,
		&unix.SockaddrVM{CID: 3, Port: 4711}:                     false,
		&unix.SockaddrUnix{}:                                     false,
		nil:                                                      false,
	} {
		if isHost(from) != want {
			t.Errorf("a connection from %+v: host %t", from, !want)
		}
	}
}

// A program that connects and is not the host is sent away, and the agent goes on waiting.
func TestAcceptRefusesOthersThanTheHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vsock")
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := errors.Join(unix.Bind(socket, &unix.SockaddrUnix{Name: path}), unix.Listen(socket, 1)); err != nil {
		t.Fatal(err)
	}
	v := vsock{socket: socket, listens: true}
	if _, err := v.accept(); !errors.Is(err, errNoHost) {
		t.Fatalf("without a connection: %v", err)
	}
	other, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := v.accept(); !errors.Is(err, errNoHost) {
		t.Errorf("a program that is not the host: %v", err)
	}
	if n, err := other.Read(make([]byte, 1)); err == nil {
		t.Errorf("it reads %d bytes", n)
	}
}
