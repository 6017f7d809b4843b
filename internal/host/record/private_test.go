package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/lock"
	"github.com/numavisor/numavisor/internal/journal"
)

// Records contain who did what to which VM, and any user who can open a lock
// can take it: records that an older version made readable for all are
// restricted.
func TestRecords_AreTheirOwnersOnly(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "numavisor")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{historyFile, historyFile + ".1", historyLock, holdLock, alarmsFile} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	held, err := Hold(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	j := Journal{Folder: folder, Most: 100}
	for range 3 { // this starts a new file
		mustAppend(t, j, entry(0, journal.Started, ""))
	}
	if err := SaveAlarms(folder, Alarms{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v; want mode 700", info.Mode(), err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) < 5 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 600", e.Name(), info.Mode(), err)
		}
	}
}

// The daemon's loop writes the journal: a lock that is never released must not
// stop it.
func TestJournal_LimitsTheWaitForItsLock(t *testing.T) {
	folder := t.TempDir()
	j := Journal{Folder: folder}
	mustAppend(t, j, entry(0, journal.Started, ""))
	file, err := os.Open(filepath.Join(folder, historyLock))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"adding":  func() error { return j.Append(entry(0, journal.Started, "")) },
		"reading": func() error { _, err := j.Read(Filter{}); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- do() }()
		select {
		case err := <-ended:
			if !errors.Is(err, lock.ErrTaken) {
				t.Errorf("%s: %v; want ErrTaken", what, err)
			}
		case <-time.After(3 * lockWait):
			t.Fatalf("%s still waits after %v", what, 3*lockWait)
		}
	}
}
