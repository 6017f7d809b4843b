package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// scene is a watch with a record that a test writes.
type scene struct {
	*testing.T
	*watch
}

func newScene(t *testing.T) scene {
	t.Helper()
	return scene{t, newWatch(filepath.Join(t.TempDir(), "handoff.json"))}
}

func (s scene) record(text string) {
	s.Helper()
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s scene) ran(cpu topology.CPUID, ran time.Duration) {
	s.look(func() []thread { return []thread{{guest: "a", tid: 7, ran: ran, cpu: cpu}} })
}

const (
	toA   = `{"grants":[{"cpu":1,"guest":"a"},{"cpu":2,"guest":"b"}]}`
	moves = `{"grants":[{"cpu":1,"guest":"a","leaving":true,"since":"2026-01-01T00:00:00Z"}]}`
	toB   = `{"grants":[{"cpu":1,"guest":"b","since":"2026-01-01T00:00:00.02Z"}]}`
)

func TestAVCPUOnAnotherVMsCPUIsAViolation(t *testing.T) {
	s := newScene(t)
	s.record(toA)
	s.ran(1, 0)
	s.ran(1, 1) // the record was new
	s.ran(1, 2)
	s.ran(5, 3) // not for hand-over
	s.ran(5, 4)
	if len(s.out.Violations) > 0 || s.out.Judged != 1 {
		t.Fatalf("on its own CPU: %+v", s.out)
	}
	s.ran(2, 5)
	s.ran(2, 5) // it does not run
	if len(s.out.Violations) > 0 {
		t.Fatalf("it only waits: %+v", s.out)
	}
	s.ran(2, 6)
	if len(s.out.Violations) != 1 || !strings.Contains(s.out.Violations[0], `on CPU 2, which serves "b"`) {
		t.Errorf("on the CPU of b: %+v", s.out)
	}
}

// While a CPU changes hands nothing is judged; afterwards everything is.
func TestAHandOverIsTimedAndNotJudged(t *testing.T) {
	s := newScene(t)
	s.record(toA)
	s.ran(1, 1)
	s.record(moves)
	s.ran(1, 2)
	s.record(`{"grants":[]}`)
	s.ran(1, 3)
	s.record(toB)
	s.ran(1, 4)
	if len(s.out.Violations) > 0 {
		t.Fatalf("while it changes hands: %+v", s.out)
	}
	if h := s.out.HandOvers; len(h) != 1 || h[0] != (HandOver{1, "a", "b", 20}) {
		t.Errorf("hand-overs %+v, want CPU 1 from a to b in 20 ms", h)
	}
	s.ran(1, 5)
	s.ran(1, 6)
	if len(s.out.Violations) == 0 {
		t.Error("a runs on the CPU of b")
	}
}

func TestTheTimeBelowTheMinimum(t *testing.T) {
	s := newScene(t)
	s.minimums["a"] = 2
	begin := time.Unix(1_800_000_000, 0)
	for i, text := range []string{
		`{"grants":[{"cpu":1,"guest":"a"}]}`, // it does not run yet
		`{"grants":[{"cpu":1,"guest":"a"}],"guests":{"a":{}}}`,
		`{"grants":[{"cpu":1,"guest":"a"},{"cpu":2,"guest":"a"}],"guests":{"a":{}}}`,
		`{"grants":[{"cpu":1,"guest":"a"}],"guests":{"a":{}}}`,
		`{"grants":[{"cpu":1,"guest":"a"}],"guests":{"a":{}}}`,
	} {
		s.record(text)
		s.readRecord(begin.Add(time.Duration(i) * 30 * time.Millisecond))
	}
	if got := s.out.Below["a"]; got != 30 {
		t.Errorf("below its minimum for %v ms, want 30", got)
	}
	s.record("not a record")
	if s.readRecord(begin); len(s.out.Violations) != 1 {
		t.Errorf("a record that cannot be read: %+v", s.out)
	}
}

// A vCPU that waits is robbed by other VMs of what these run on its CPU meanwhile, and not by vCPUs of its own VM.
func TestWaitsForOtherVMsAreStolen(t *testing.T) {
	s := newScene(t)
	const ms = time.Millisecond
	for _, look := range [][]thread{
		{{"a", 1, 0, 0, 1}, {"a", 2, 0, 0, 1}, {"b", 3, 0, 0, 1}, {"b", 4, 0, 0, 2}},
		{{"a", 1, 40 * ms, 50 * ms, 1}, {"a", 2, 50 * ms, 5 * ms, 1}, {"b", 3, 10 * ms, 0, 1}, {"b", 4, 90 * ms, 20 * ms, 2}},
	} {
		s.look(func() []thread { return look })
	}
	// Thread 1 waits for 50 ms while b runs for 10, thread 2 for 5; thread 4 waits with its CPU to itself.
	if s.out.Stolen["a"] != 0.015 || s.out.Stolen["b"] != 0 || s.out.Waited["a"] != 0.055 {
		t.Errorf("stolen %v of %v", s.out.Stolen, s.out.Waited)
	}
}

func TestReadThread(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "42")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("comm", "CPU 3/KVM\n")
	write("stat", "42 (CPU 3/KVM) S "+strings.Repeat("0 ", 35)+"6 0 0\n") // the 39th field is 6
	write("schedstat", "1000 200 3\n")
	f, ok := open("a", folder)
	if !ok {
		t.Fatal("a vCPU's thread is not one")
	}
	defer f.close()
	for _, ran := range []time.Duration{1000, 2000} {
		if got, ok := f.read(); !ok || got != (thread{guest: "a", tid: 42, ran: ran, wait: 200, cpu: 6}) {
			t.Errorf("%+v, %t", got, ok)
		}
		write("schedstat", "2000 200 4\n")
	}
	write("stat", "")
	if _, ok := f.read(); ok {
		t.Error("a thread that has ended is one")
	}
	write("comm", "qemu-system-x86\n")
	if _, ok := open("a", folder); ok {
		t.Error("a thread of QEMU counts as a vCPU")
	}
}
