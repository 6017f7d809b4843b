package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/journal"
)

// A huge file of the journal takes no more memory than a large one, and its
// newest entries are read.
func TestJournal_ReadsTheEndOfAHugeFile(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 1 << 40}
	path := filepath.Join(j.Folder, historyFile)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	file.Close()
	mustAppend(t, j, entry(0, journal.Started, ""))
	h, err := j.Read(Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Entries) != 1 || len(h.Unreadable) != 1 || !strings.Contains(h.Unreadable[0], "only the last") {
		t.Errorf("%d entries, unreadable %q; wanted the one entry and a note", len(h.Entries), h.Unreadable)
	}
}

func TestJournal_DoesNotWaitForAFIFO(t *testing.T) {
	j := Journal{Folder: t.TempDir()}
	if err := unix.Mkfifo(filepath.Join(j.Folder, historyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Read(Filter{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v; want that it is not a regular file", err)
	}
}

func TestLoadAlarms_DoesNotWaitForAFIFO(t *testing.T) {
	folder := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(folder, alarmsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAlarms(folder); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v; wanted that it is no regular file", err)
	}
}
