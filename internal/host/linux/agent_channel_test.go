package linux

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVSockCID(t *testing.T) {
	for _, c := range []struct {
		args string
		want uint32
	}{
		{`-device vhost-vsock-pci,id=v,guest-cid=42,vhostfd=25`, 42},
		{`-device {"driver":"vhost-vsock-pci","id":"vsock0","guest-cid":7,"vhostfd":"25","bus":"pci.1"}`, 7},
		{`-device virtio-serial-pci,id=s -device vhost-vsock-device,guest-cid=3`, 3},
		{`-device vhost-vsock-pci,id=v`, 0},
		{`-device vhost-vsock-pci,guest-cid=2`, 0}, // the host itself
		{`-device vhost-vsock-pci,guest-cid=4294967299`, 0},
		{`-device {"driver":"vhost-vsock-pci","guest-cid":-1}`, 0},
		{`-device {"driver":"virtio-net-pci","guest-cid":9}`, 0},
		{`-name guest=vhost-vsock-pci,guest-cid=9`, 0},
		{``, 0},
	} {
		got, ok := vsockCID(append([]string{"qemu-system-x86_64"}, strings.Fields(c.args)...))
		if got != c.want || ok != (c.want > 0) {
			t.Errorf("%s: vsock %d, %t; want %d", c.args, got, ok, c.want)
		}
	}
}

func TestConnectUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	if _, err := ConnectUnix(path); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a socket that does not exist: %v", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := ConnectUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	// Close ends a read, as the end of the daemon requires.
	read := make(chan error)
	go func() { _, err := conn.Read(make([]byte, 1)); read <- err }()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read of a closed channel: %v", err)
	}
}

func TestConnectAgentNeedsAChannel(t *testing.T) {
	_, err := NewVMThreads(Live).ConnectAgent(os.Getpid(), "org.example.port.0", 868)
	if err == nil || !strings.Contains(err.Error(), "neither a port org.example.port.0 nor a vsock") {
		t.Errorf("a process without a channel: %v", err)
	}
}
