package handoff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
	words "github.com/numavisor/numavisor/internal/guest"
)

// connection is the channel to one guest's agent.
type connection struct {
	threads  Threads
	log      func(format string, args ...any)
	name     string
	pid      int
	stop     func()
	messages chan<- message
	tids     map[words.VCPUID]int // of the loop's goroutine

	lock sync.Mutex
	conn *os.File // nil: not connected
}

// again is the time between two attempts to connect.
const again = time.Second

// send sends a message, or drops it if the socket has no room: a later one replaces
// it. It never waits: QEMU, and the kernel for a vsock, take no more than the guest has
// room for.
func (c *connection) send(text []byte) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.conn == nil {
		return
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return
	}
	n := len(text)
	if controlled := raw.Control(func(fd uintptr) { n, err = unix.Write(int(fd), text) }); controlled != nil {
		return
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) || n > 0 && n < len(text) {
		_ = c.conn.Close() // part of it may be written: only a new connection begins with a message
	}
}

// run connects, passes lines on, and connects again, until ctx ends.
func (c *connection) run(ctx context.Context) {
	said := ""
	for {
		err := c.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(err); text != said {
			said = text
			c.log("VM %s: its agent cannot be reached: %v; trying again every second", c.name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

func (c *connection) serve(ctx context.Context) error {
	conn, err := c.threads.ConnectAgent(c.pid, guest.Port, guest.VSockPort)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	c.set(conn)
	defer c.set(nil)
	var lines guest.Lines
	var buffer [4096]byte
	for {
		n, err := conn.Read(buffer[:])
		lines.Add(buffer[:n], func(line []byte) {
			select {
			case c.messages <- message{c.name, append([]byte(nil), line...)}:
			case <-ctx.Done():
			}
		})
		if err != nil {
			return err
		}
	}
}

func (c *connection) set(conn *os.File) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.conn = conn
}
