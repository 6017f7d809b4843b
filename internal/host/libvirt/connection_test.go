package libvirt

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"libvirt.org/go/libvirt"
)

// fakeDaemon is a daemon that can be stopped, restart and hang.
type fakeDaemon struct {
	mu    sync.Mutex
	down  bool
	epoch int
	dials int
	open  int
	hang  chan struct{} // dialling waits for it, if not nil
}

type fakeClient struct {
	daemon *fakeDaemon
	epoch  int
	closed atomic.Bool
}

var errFakeDown = errors.New("connection refused")

func (d *fakeDaemon) dial() (*fakeClient, error) {
	if d.hang != nil {
		<-d.hang
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials++
	if d.down {
		return nil, errFakeDown
	}
	d.open++
	return &fakeClient{daemon: d, epoch: d.epoch}, nil
}

func (d *fakeDaemon) set(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
	d.epoch++
}

func (d *fakeDaemon) figures() (dials, open int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials, d.open
}

func (c *fakeClient) Close() (int, error) {
	if c.closed.Swap(true) {
		panic("closed twice")
	}
	c.daemon.mu.Lock()
	defer c.daemon.mu.Unlock()
	c.daemon.open--
	return 0, nil
}

func (c *fakeClient) IsAlive() (bool, error) { return true, nil }

// work fails if the daemon is another one than was dialled.
func (c *fakeClient) work() error {
	if c.closed.Load() {
		return errors.New("used after close")
	}
	c.daemon.mu.Lock()
	defer c.daemon.mu.Unlock()
	if c.epoch != c.daemon.epoch || c.daemon.down {
		return errFakeDown
	}
	return nil
}

func newLine(d *fakeDaemon) *line[*fakeClient] {
	return &line[*fakeClient]{
		dial:   d.dial,
		seen:   new(atomic.Bool),
		broken: func(err error) bool { return errors.Is(err, errFakeDown) },
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestLineOpensOnceAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		for range 5 {
			if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
				t.Fatal(err)
			}
		}
		if dials, open := d.figures(); dials != 1 || open != 1 {
			t.Errorf("%d dials, %d open", dials, open)
		}
		l.close()
		if _, open := d.figures(); open != 0 {
			t.Errorf("%d open after close", open)
		}
		if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Errorf("after close a new connection is opened: %v", err)
		}
	})
}

func TestLineAbsentDaemonIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(&fakeDaemon{down: true})
		start := time.Now()
		if err := l.read(within(t, 10*time.Second), (*fakeClient).work); !errors.Is(err, errFakeDown) {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestLine_ReadsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Fatal(err)
		}
		d.set(true)
		go func() {
			time.Sleep(120 * time.Millisecond)
			d.set(false)
		}()
		if err := l.read(within(t, 5*time.Second), (*fakeClient).work); err != nil {
			t.Errorf("read over a restart: %v", err)
		}
		if _, open := d.figures(); open != 1 {
			t.Errorf("%d connections open", open)
		}
	})
}

func TestLineReadGivesUpWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Fatal(err)
		}
		d.set(true)
		if err := l.read(within(t, 150*time.Millisecond), (*fakeClient).work); !errors.Is(err, errFakeDown) {
			t.Errorf("error is %v, not why the daemon is away", err)
		}
	})
}

// TestLine_ReasonOutlivesAnInterruptedAttempt: the deadline ends a later attempt, which then
// has no reason of its own.
func TestLine_ReasonOutlivesAnInterruptedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{down: true}
		l := newLine(d)
		l.seen.Store(true)
		release := make(chan struct{})
		dials := 0
		l.dial = func() (*fakeClient, error) {
			if dials++; dials > 1 {
				<-release
			}
			return d.dial()
		}
		if err := l.read(within(t, 150*time.Millisecond), (*fakeClient).work); !errors.Is(err, errFakeDown) {
			t.Errorf("error is %v, not why the daemon is away", err)
		}
		close(release)
	})
}

func TestLineControlIsNeverRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		calls := 0
		err := l.control(within(t, time.Second), func(c *fakeClient) error {
			calls++
			d.set(false) // restarts while the call is under way
			return c.work()
		})
		if calls != 1 || !errors.Is(err, errLost) || !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("%d calls, %v", calls, err)
		}
		if err := l.control(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Errorf("the next one: %v", err)
		}
	})
}

func TestLineControlWaitsForTheDaemonBeforeItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		l.seen.Store(true)
		d.set(true)
		go func() {
			time.Sleep(100 * time.Millisecond)
			d.set(false)
		}()
		calls := 0
		if err := l.control(within(t, 5*time.Second),
			func(c *fakeClient) error { calls++; return c.work() }); err != nil ||
			calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}

func TestLineDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{}
		l := newLine(d)
		release := make(chan struct{})
		back := make(chan struct{})
		start := time.Now()
		err := l.control(within(t, 50*time.Millisecond), func(c *fakeClient) error {
			<-release
			close(back)
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Errorf("the next call has a connection of its own: %v", err)
		}
		if dials, open := d.figures(); dials != 2 || open != 2 {
			t.Errorf("%d dials, %d open: the stuck call still uses its own", dials, open)
		}
		close(release)
		<-back
		eventually(t, "the stuck call's connection is closed when it comes back",
			func() bool { _, open := d.figures(); return open == 1 })
	})
}

func TestLineReadOfAHangingDaemonEndsBeforeTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(&fakeDaemon{})
		hang := make(chan struct{})
		began := time.Now()
		err := l.read(within(t, time.Hour), func(*fakeClient) error { <-hang; return nil })
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != readTime {
			t.Errorf("after %v: %v; want a timeout after %v", took, err, readTime)
		}
		close(hang)
		synctest.Wait()
	})
}

func TestLineDialThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{hang: make(chan struct{})}
		l := newLine(d)
		if err := l.read(within(t, 30*time.Millisecond), (*fakeClient).work); !errors.Is(
			err,
			context.DeadlineExceeded,
		) {
			t.Fatal(err)
		}
		close(d.hang)
		eventually(t, "the connection that came late serves later calls",
			func() bool { _, open := d.figures(); return open == 1 })
		if err := l.read(within(t, time.Second), (*fakeClient).work); err != nil {
			t.Fatal(err)
		}
		l.close()
		eventually(t, "no call is left counted on it", func() bool { _, open := d.figures(); return open == 0 })
	})
}

func TestLineBoundsStuckCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(&fakeDaemon{})
		release := make(chan struct{})
		for range maxStuck {
			_ = l.read(within(t, time.Millisecond), func(*fakeClient) error { <-release; return nil })
		}
		if err := l.read(within(t, time.Second), (*fakeClient).work); !errors.Is(err, errCrowded) {
			t.Errorf("error is %v", err)
		}
		close(release)
		eventually(t, "calls work again once the stuck ones are back", func() bool {
			return l.read(within(t, time.Second), (*fakeClient).work) == nil
		})
	})
}

// TestLineUnderStress runs calls while the daemon restarts; no call may use a
// closed connection, and none may stay open in the end.
func TestLineUnderStress(t *testing.T) {
	d := &fakeDaemon{}
	l := newLine(d)
	l.seen.Store(true)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for range 8 {
		wg.Go(func() {
			for range 40 {
				if err := l.read(within(t, time.Minute), (*fakeClient).work); err != nil {
					errs <- err
				}
			}
		})
	}
	for range 20 {
		d.set(false)
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	l.close()
	eventually(t, "all closed", func() bool { _, open := d.figures(); return open == 0 })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 200 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("not so after 2 s: %s", what)
}

// A control call under an ended context is not sent: its outcome is known.
func TestLine_SendsNothingUnderAnEndedContext(t *testing.T) {
	d := testDriver(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whether the call was sent used to be a race
		err := call(ctx, d, "test", (*libvirt.Domain).Suspend)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownOutcome) {
			t.Fatalf("error is %v, want the context's error and a known outcome", err)
		}
	}
	if l, err := d.Find(t.Context(), "test"); err != nil || l.State != "running" {
		t.Errorf("guest test is %q, error %v; want it to run", l.State, err)
	}
}
