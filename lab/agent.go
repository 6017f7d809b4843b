package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed agent/agent.c
var agentSource []byte

// Messages between this side and agent/agent.c, which says what they mean.
const (
	runMessage      = 'R'
	killMessage     = 'K'
	goMessage       = 'G'
	powerOffMessage = 'O'
	upMessage       = 'u'
	goneMessage     = 'g'
	outMessage      = 'o'
	errMessage      = 'e'
	exitMessage     = 'x'
)

const (
	messageHeader  = 9
	longestMessage = 1 << 20
	entropyBytes   = 64
)

// ErrSilent means that the emulator has locked up: the lab's agent sends a
// heartbeat every two seconds, and none came for a minute. It happens
// occasionally when QEMU emulates several busy CPUs on few real ones. Kill the lab and
// boot another.
var ErrSilent = errors.New("the lab gives no sign of life")

// silence is how long a working lab may be silent on a busy machine.
const silence = time.Minute

// agentLink is the connection to the agent in a lab. QEMU has the other end
// as a virtio-serial port.
type agentLink struct {
	conn  net.Conn
	up    chan struct{} // closed when the agent has said that it takes commands
	gone  chan struct{} // one for each order to go on that was carried out
	ended chan struct{} // closed when receive has returned

	writing sync.Mutex

	mu       sync.Mutex
	commands map[uint32]*command
	next     uint32
	heard    time.Time // when the last message came; zero before the first order to go on
}

// command is one that runs in the lab.
type command struct {
	id      uint32
	changed chan struct{} // has room for one: something below has changed

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	ended          bool
	status         int
}

// newAgentLink returns the link and the file that QEMU inherits as its end.
func newAgentLink() (*agentLink, *os.File, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, nil, fmt.Errorf("connecting with the lab's agent: %w", err)
	}
	l := &agentLink{
		conn:     near,
		up:       make(chan struct{}),
		gone:     make(chan struct{}, 1),
		ended:    make(chan struct{}),
		commands: map[uint32]*command{},
	}
	go l.receive()
	return l, far, nil
}

// socketPair returns two connected sockets, the far one as a file for a child process.
func socketPair() (near net.Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	mine := os.NewFile(uintptr(fds[0]), "near end")
	defer mine.Close() // net.FileConn has a duplicate
	far = os.NewFile(uintptr(fds[1]), "far end")
	if near, err = net.FileConn(mine); err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// receive reads messages until the connection is closed.
func (l *agentLink) receive() {
	defer close(l.ended)
	in := bufio.NewReader(l.conn)
	var header [messageHeader]byte
	isUp := false
	for {
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return
		}
		size := binary.LittleEndian.Uint32(header[5:])
		if size > longestMessage {
			return // not the agent's protocol; the lab counts as silent
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		l.mu.Lock()
		if !l.heard.IsZero() {
			l.heard = time.Now()
		}
		c := l.commands[binary.LittleEndian.Uint32(header[1:])]
		l.mu.Unlock()
		switch header[0] {
		case upMessage:
			if !isUp {
				close(l.up)
			}
			isUp = true
		case goneMessage:
			select {
			case l.gone <- struct{}{}:
			default:
			}
		default:
			if c != nil {
				c.take(header[0], payload)
			}
		}
	}
}

func (c *command) take(kind byte, payload []byte) {
	c.mu.Lock()
	switch kind {
	case outMessage:
		c.stdout.Write(payload)
	case errMessage:
		c.stderr.Write(payload)
	case exitMessage:
		c.ended = true
		if len(payload) == 4 {
			c.status = int(int32(binary.LittleEndian.Uint32(payload)))
		}
	}
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// sendTime bounds the writing of one message: QEMU reads while its vCPUs run.
const sendTime = silence

func (l *agentLink) send(kind byte, id uint32, payload []byte) error {
	if len(payload) > longestMessage {
		return fmt.Errorf("a message of %d bytes to the lab; at most %d are possible", len(payload), longestMessage)
	}
	message := append(make([]byte, 0, messageHeader+len(payload)), kind)
	message = binary.LittleEndian.AppendUint32(message, id)
	message = binary.LittleEndian.AppendUint32(message, uint32(len(payload)))
	message = append(message, payload...)
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	_, err := l.conn.Write(message)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: its agent takes no message within %v", ErrSilent, sendTime)
	}
	return err
}

// goOn sets the lab's clock and random numbers, and waits for the agent's
// confirmation. Heartbeats are expected from then on.
func (l *agentLink) goOn(ctx context.Context) error {
	payload := make([]byte, 8, 8+entropyBytes)
	binary.LittleEndian.PutUint64(payload, uint64(time.Now().UnixNano()))
	entropy := make([]byte, entropyBytes)
	if _, err := rand.Read(entropy); err != nil {
		return err
	}
	if err := l.send(goMessage, 0, append(payload, entropy...)); err != nil {
		return err
	}
	select {
	case <-l.gone:
	case <-l.ended:
		return io.ErrUnexpectedEOF
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
	return nil
}

// silentSince returns since when the link has received no message; false if
// that is not too long.
func (l *agentLink) silentSince() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard, !l.heard.IsZero() && time.Since(l.heard) > silence
}

func (l *agentLink) start(argv []string) (*command, error) {
	var payload []byte
	for _, a := range argv {
		if bytes.IndexByte([]byte(a), 0) >= 0 {
			return nil, fmt.Errorf("argument %q holds a NUL", a)
		}
		payload = append(append(payload, a...), 0)
	}
	c := &command{changed: make(chan struct{}, 1)}
	l.mu.Lock()
	l.next++
	c.id = l.next
	l.commands[c.id] = c
	l.mu.Unlock()
	if err := l.send(runMessage, c.id, payload); err != nil {
		l.forget(c)
		return nil, err
	}
	return c, nil
}

func (l *agentLink) forget(c *command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.commands, c.id)
}

// pass writes the received output and reports whether the command has ended.
func (c *command) pass(stdout, stderr io.Writer) (status int, ended bool, err error) {
	c.mu.Lock()
	out, errOut := bytes.Clone(c.stdout.Bytes()), bytes.Clone(c.stderr.Bytes())
	c.stdout.Reset()
	c.stderr.Reset()
	status, ended = c.status, c.ended
	c.mu.Unlock()
	for _, part := range []struct {
		to   io.Writer
		data []byte
	}{{stdout, out}, {stderr, errOut}} {
		if len(part.data) > 0 {
			if _, failed := part.to.Write(part.data); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}
	return status, ended, err
}

func (l *agentLink) close() {
	_ = l.conn.Close() // the lab has ended: nothing is lost
	<-l.ended
}

// compileAgent returns the agent's program from the cache.
func compileAgent(ctx context.Context) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(agentSource)
	target := filepath.Join(cache, "agent-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, compileC(ctx, agentSource, target, "-static")
}
