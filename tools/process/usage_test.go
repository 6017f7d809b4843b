package process

import (
	"os"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// The name of a process may contain spaces and parentheses.
func TestParseStat(t *testing.T) {
	const line = "77 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20 0 5 0 100"
	if got, err := parseStat(line); err != nil || got != 2810*time.Millisecond {
		t.Errorf("%v, %v; want 2.81s", got, err)
	}
	for _, bad := range []string{"", "77 (a) S 1 2 3", "77 (a) S 1 2 3 4 5 6 7 8 9 10 x 31"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestParseStatus(t *testing.T) {
	const text = "Name:\ta\nVmHWM:\t  4096 kB\nVmRSS:\t    3072 kB\nRssAnon:\t    2048 kB\nRssFile:\t    1024 kB\n"
	want := Memory{Resident: 3 * topology.MiB, Peak: 4 * topology.MiB, Anonymous: 2 * topology.MiB, File: topology.MiB}
	if got, err := parseStatus(text); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "VmRSS:\t3072 kB\n", "VmRSS:\tmuch\n"} {
		if got, err := parseStatus(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

// The kernel's own files have the form that is read.
func TestUsage_OfThisProcess(t *testing.T) {
	if _, err := CPU(os.Getpid()); err != nil {
		t.Error(err)
	}
	m, err := MemoryOf(os.Getpid())
	if err != nil || m.Resident < topology.MiB || m.Peak < m.Anonymous {
		t.Errorf("%+v, %v", m, err)
	}
}
