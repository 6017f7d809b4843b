package libvirt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// client are the functions of a libvirt connection that a line uses.
type client interface {
	Close() (int, error)
	IsAlive() (bool, error)
}

// line is one connection to the daemon, opened when needed and again when it
// breaks. libvirt's calls block in C without a time limit: each runs in a
// goroutine of its own. When its time is up the caller goes on and the
// connection is abandoned; it is closed when the last call on it has returned.
type line[C client] struct {
	dial   func() (C, error)
	broken func(error) bool // the error says that the connection is unusable
	seen   *atomic.Bool     // the line was open once: the daemon exists here, so its absence is a restart

	mu    sync.Mutex
	now   *session[C] // nil: not open
	stuck int         // calls whose callers have gone on
}

// session is one open connection with the calls that run on it.
type session[C client] struct {
	conn  C
	calls int
	dead  bool // close when calls is 0
}

// Limits of a line: abandoned calls that still block in the daemon, the time of
// a read, reconnections included, and of a control call whose context has no
// deadline, and the pauses between reconnections.
//
// Each abandoned call keeps one worker of the daemon busy until it returns, and
// a daemon has 20 (max_workers in libvirtd.conf): one VM that blocks the list of
// all VMs would otherwise block every client of the daemon in the end.
const (
	maxStuck    = 3
	readTime    = 30 * time.Second
	defaultTime = 30 * time.Second
	firstPause  = 50 * time.Millisecond
	longestWait = time.Second
)

// errLost means that the connection broke during a call; errCrowded, that too
// many calls never returned.
var (
	errLost    = errors.New("the connection broke")
	errCrowded = fmt.Errorf("%d earlier calls have not returned", maxStuck)
)

// read runs an idempotent call; while the daemon is away it repeats the call
// until readTime or the context ends. It reports a daemon that was never there
// at once. No read takes that long where the daemon is well, so a command does
// not wait for a hanging daemon until its own deadline.
func (l *line[C]) read(ctx context.Context, call func(C) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return l.run(ctx, true, call)
}

// control runs a call that changes something. It waits for the daemon before it
// sends the call, and never repeats the call afterwards.
func (l *line[C]) control(ctx context.Context, call func(C) error) error {
	return l.run(ctx, false, call)
}

func (l *line[C]) run(ctx context.Context, again bool, call func(C) error) error {
	if err := ctx.Err(); err != nil {
		return err // not sent: nothing was done
	}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTime)
		defer cancel()
	}
	var away error // why the daemon could not be reached: more useful than the timeout alone
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		sent, err := l.once(ctx, call)
		switch {
		case away != nil && !sent && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return away
		case err == nil:
			return nil
		case sent && !again && l.broken(err):
			return fmt.Errorf("%w: %w: %w", errLost, ErrUnknownOutcome, err)
		case sent && !again && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return fmt.Errorf("%w: %w", err, ErrUnknownOutcome)
		case !l.broken(err) || !l.seen.Load():
			return err
		}
		away = err
		select {
		case <-ctx.Done():
			return away
		case <-time.After(pause):
		}
	}
}

// once runs the call on the open connection, which it opens first if necessary.
// sent says whether the call was begun.
func (l *line[C]) once(ctx context.Context, call func(C) error) (sent bool, err error) {
	if l.crowded() {
		return false, errCrowded
	}
	s, err := l.acquire(ctx)
	if err != nil {
		return false, err
	}
	work := func() error {
		defer l.release(s)
		err := call(s.conn)
		if err != nil && l.broken(err) {
			l.abandon(s)
		}
		return err
	}
	return true, l.wait(ctx, work, func() { l.abandon(s) }, func() {})
}

// wait runs work in a goroutine. If the context ends first it calls giveUp and
// returns; when the goroutine finally ends, it calls late.
func (l *line[C]) wait(ctx context.Context, work func() error, giveUp, late func()) error {
	var left bool // the caller has gone on; under mu
	done := make(chan error, 1)
	go func() {
		err := work()
		l.mu.Lock()
		done <- err
		if left {
			l.stuck--
		}
		l.mu.Unlock()
		if left {
			late()
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	l.mu.Lock()
	select {
	case err := <-done: // it returned just now
		l.mu.Unlock()
		return err
	default:
		left = true
		l.stuck++
	}
	l.mu.Unlock()
	giveUp()
	return ctx.Err()
}

func (l *line[C]) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck >= maxStuck
}

// acquire returns the open session with one call counted, dialling if there is none.
func (l *line[C]) acquire(ctx context.Context) (*session[C], error) {
	l.mu.Lock()
	s := l.now
	if s != nil {
		s.calls++
	}
	l.mu.Unlock()
	if s != nil {
		if alive, err := s.conn.IsAlive(); err == nil && alive {
			return s, nil
		}
		l.abandon(s)
		l.release(s)
	}
	var fresh *session[C]
	dial := func() error {
		conn, err := l.dial()
		if err == nil {
			fresh = l.install(conn)
		}
		return err
	}
	late := func() {
		if fresh != nil {
			l.release(fresh)
		}
	}
	if err := l.wait(ctx, dial, func() {}, late); err != nil {
		return nil, err
	}
	return fresh, nil
}

// install makes a connection the current one, unless another call was faster:
// then that call's connection is used. The returned session has one more call
// counted.
func (l *line[C]) install(conn C) *session[C] {
	l.mu.Lock()
	l.seen.Store(true)
	s := l.now
	if s == nil {
		s = &session[C]{conn: conn}
		l.now = s
	}
	s.calls++
	spare := any(s.conn) != any(conn)
	l.mu.Unlock()
	if spare {
		_, _ = conn.Close() // no caller has it yet
	}
	return s
}

// abandon stops new calls from using a session.
func (l *line[C]) abandon(s *session[C]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.dead = true
	if l.now == s {
		l.now = nil
	}
}

// release ends a call; the last one closes a dead session.
func (l *line[C]) release(s *session[C]) {
	l.mu.Lock()
	s.calls--
	last := s.dead && s.calls == 0
	l.mu.Unlock()
	if last {
		_, _ = s.conn.Close() // it is unusable, whatever it says
	}
}

// close closes the connection; running calls end by themselves.
func (l *line[C]) close() {
	l.mu.Lock()
	s := l.now
	if s != nil {
		s.calls++
	}
	l.mu.Unlock()
	if s != nil {
		l.abandon(s)
		l.release(s)
	}
}
