package handoff

import (
	"bufio"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
)

// A guest that does not read its port, as while it boots, neither delays the host nor
// loses the connection: what does not fit is dropped.
func TestSendDropsWhatAGuestDoesNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := linux.ConnectUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	port, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = port.Close() }()
	c := &connection{name: "m", conn: conn}
	for range 100_000 {
		c.send([]byte("a grant\n"))
	}
	lines := bufio.NewReader(port)
	for range 10 {
		if line, err := lines.ReadString('\n'); err != nil || line != "a grant\n" {
			t.Fatalf("read %q, %v", line, err)
		}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatalf("the connection is closed: %v", err)
	}
}
