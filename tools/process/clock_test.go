package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clockChild says to a child of this test that it prints its clocks.
const clockChild = "NUMAVISOR_TEST_CLOCK"

// The clock of a process goes ahead, back, and is right again, while it asks for the time as often as it can. What it
// measures with time.Since does not change.
func TestShift_ChangesTheWallClockOfOneProcess(t *testing.T) {
	if os.Getenv(clockChild) != "" {
		printClocks()
		return
	}
	if !CanShift {
		t.Skip("there is code for amd64 only")
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), clockChild+"=1")
	child.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Program{Name: "child", run: child}
	defer p.Kill()
	lines := bufio.NewScanner(out)
	for _, by := range []time.Duration{0, time.Hour, -400 * 24 * time.Hour, 0} {
		if err := p.Shift(by); err != nil {
			t.Fatal(err)
		}
		wantClock(t, lines, by)
	}
}

// wantClock reads what the child prints until its clock is right.
func wantClock(t *testing.T, lines *bufio.Scanner, by time.Duration) {
	t.Helper()
	var now, since int64
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && lines.Scan(); {
		if _, err := fmt.Sscan(lines.Text(), &now, &since); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if since < 0 || since > int64(time.Minute) {
			t.Fatalf("it measures %v", time.Duration(since))
		}
		if off := time.Until(time.Unix(0, now)) - by; off.Abs() < 5*time.Second {
			return
		}
	}
	t.Fatalf("its clock is not shifted by %v; the last it said is %v", by, time.Unix(0, now))
}

// printClocks prints the time, and the time since the start, while other goroutines ask for it.
func printClocks() {
	began := time.Now()
	for range 3 {
		go func() {
			for {
				_ = time.Now()
			}
		}()
	}
	for {
		fmt.Println(time.Now().UnixNano(), int64(time.Since(began)))
		time.Sleep(10 * time.Millisecond)
	}
}
