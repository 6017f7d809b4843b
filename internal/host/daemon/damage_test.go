package daemon_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// said is a log that can be read while it is written.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// journalAlarm finds the alarm about the journal.
func (w *world) journalAlarm() (alarm.Alarm, bool) {
	w.t.Helper()
	all := w.status().Alarms
	i := slices.IndexFunc(all, func(a alarm.Alarm) bool { return strings.Contains(a.Why, "journal") })
	if i < 0 {
		return alarm.Alarm{}, false
	}
	return all[i], true
}

// A damaged line may belong to an interrupted move. The daemon cannot resume
// that move, and says so: in its log at once, and in an alarm until an operator
// removes the line.
func TestStart_ReportsADamagedJournal(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		path := filepath.Join(w.folder, "history.jsonl")
		damaged := `{"at":"2026-03-01T12:00:00Z","kind":"move-began","id":"m","guests":["a"],"mo` + "\n"
		if err := os.WriteFile(path, []byte(damaged), 0o644); err != nil {
			t.Fatal(err)
		}
		var log said
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.start()
		if text := log.String(); !strings.Contains(text, "level=ERROR") ||
			!strings.Contains(text, "history.jsonl, line 1: ") {
			t.Errorf("the log says:\n%s", text)
		}
		passes(5 * time.Minute)
		a, found := w.journalAlarm()
		if !found || a.Quantity != alarm.SourceUnreadable {
			t.Fatalf("alarms are %+v", w.status().Alarms)
		}
		for _, want := range []string{"history.jsonl, line 1: ", w.folder, "numavisor list"} {
			if !strings.Contains(a.Why, want) {
				t.Errorf("%q does not contain %q", a.Why, want)
			}
		}
		w.end()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(damaged), nil, 1), 0o644); err != nil {
			t.Fatal(err)
		}
		w.start()
		defer w.end()
		passes(5 * time.Minute)
		if a, found := w.journalAlarm(); found {
			t.Errorf("the line was removed, but the alarm is still there: %+v", a)
		}
		if n := len(w.entries(journal.Started)); n != 2 {
			t.Errorf("%d starts in the journal", n)
		}
	})
}
