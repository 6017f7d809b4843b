package cputime

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestParseBusy_LeavesOutIdleTime(t *testing.T) {
	if got := parseBusy("cpu  100 20 30 5000 600 7 8 9 1000 1000"); got != 1740*time.Millisecond {
		t.Errorf("%v", got)
	}
}

func TestClock_CountsThisProgramAsOwn(t *testing.T) {
	c := Start()
	for c.Own() < 10*time.Millisecond {
		if c.Wall() > time.Minute {
			t.Fatalf("a loop of a minute used %v of CPU time", c.Own())
		}
	}
	if share := c.Others(); share < 0 || share > 1.1 {
		t.Errorf("others used %v of the machine", share)
	}
}

// A program that this one has started and that still runs is no other program.
func TestClock_CountsRunningChildrenAsOwn(t *testing.T) {
	c := Start()
	loop := exec.CommandContext(t.Context(), "sh", "-c", "sh -c 'while :; do :; done'; true") // a child of a child
	loop.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-loop.Process.Pid, syscall.SIGKILL)
		_ = loop.Wait()
	}()
	for c.Own() < 200*time.Millisecond {
		if c.Wall() > time.Minute {
			t.Fatalf("a loop of a minute used %v of CPU time", c.Own())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestParseStat(t *testing.T) {
	const text = "31 (a) b (c)) S 7 31 31 0 -1 4194560 100 0 0 0 11 2 30 4 20 0 1 0 5 6 7"
	if pid, parent, used, ok := parseStat(text); pid != 31 || parent != 7 || used != 470*time.Millisecond || !ok {
		t.Errorf("process %d of %d: %v, %v", pid, parent, used, ok)
	}
	for _, bad := range []string{"", "31", ")(", "31 (a) S 7", "x (a) S 7 31 31 0 -1 4194560 100 0 0 0 11 2 30 4"} {
		if _, _, _, ok := parseStat(bad); ok {
			t.Errorf("%q is read", bad)
		}
	}
}
