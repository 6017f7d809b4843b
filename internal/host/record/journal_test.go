package record

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

func put(t *testing.T, j Journal, entries ...journal.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := j.Append(e); err != nil {
			t.Fatal(err)
		}
	}
}

func ids(t *testing.T, j Journal, from time.Time) string {
	t.Helper()
	entries, err := j.Since(from)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, e := range entries {
		text += fmt.Sprintf("%s:%s ", e.Kind, e.ID)
	}
	return text
}

func began(id string, at time.Time) journal.Entry {
	return journal.Entry{At: at, Kind: journal.MoveBegan, ID: id, Move: &plan.Move{Kind: plan.Swap, Why: "because"}}
}

func done(id string, at time.Time) journal.Entry {
	return journal.Entry{At: at, Kind: journal.MoveDone, ID: id}
}

func TestJournalGivesBackWhatWasWritten(t *testing.T) {
	j := Journal{Folder: filepath.Join(t.TempDir(), "new")}
	if got := ids(t, j, time.Time{}); got != "" {
		t.Errorf("without a journal: %q", got)
	}
	put(t, j, began("a", noon), done("a", noon.Add(time.Minute)), began("b", noon.Add(time.Hour)))
	if got := ids(t, j, noon.Add(time.Second)); got != "move-done:a move-began:b " {
		t.Errorf("got %q", got)
	}
	// A move without an end is told however old it is.
	if got := ids(t, j, noon.Add(24*time.Hour)); got != "move-began:b " {
		t.Errorf("got %q", got)
	}
	entries, _ := j.Since(time.Time{})
	if entries[0].Move == nil || entries[0].Move.Why != "because" || !entries[0].At.Equal(noon) {
		t.Errorf("got %+v", entries[0])
	}
}

// kill -9 or a full disk may leave half a line: it spoils no other.
func TestATornLineSpoilsNoOther(t *testing.T) {
	j := Journal{Folder: t.TempDir()}
	put(t, j, began("a", noon))
	path := filepath.Join(j.Folder, journalName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		if err := os.WriteFile(path, append(bytes.Clone(whole), whole[:cut]...), 0o644); err != nil {
			t.Fatal(err)
		}
		put(t, j, done("a", noon))
		if got := ids(t, j, time.Time{}); got != "move-began:a move-done:a " {
			t.Fatalf("cut after %d bytes: %q", cut, got)
		}
	}
}

func TestALongJournalIsPutAsideAndLosesNoOpenMove(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 4096}
	put(t, j, began("open", noon))
	for i := range 200 {
		at := noon.Add(time.Duration(i) * time.Minute)
		put(t, j, began(fmt.Sprint(i), at), done(fmt.Sprint(i), at))
	}
	entries, err := j.Since(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if open := journal.CutShort(entries); len(open) != 1 || open[0].ID != "open" || open[0].Move == nil {
		t.Errorf("without an end: %+v", open)
	}
	if last := entries[len(entries)-1]; last.ID != "199" || !last.Ends() {
		t.Errorf("the last is %+v", last)
	}
	var size int64
	files, _ := filepath.Glob(filepath.Join(j.Folder, journalName+"*"))
	for _, f := range files {
		info, _ := os.Stat(f)
		size += info.Size()
	}
	if size > 3*(4096+1024) {
		t.Errorf("%d files take %d bytes", len(files), size)
	}
}

func TestManyWritersAtOnce(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 8192}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 10 {
				if err := j.Append(done(fmt.Sprintf("%d-%d", w, i), noon)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	entries, err := j.Since(time.Time{})
	if err != nil || len(entries) != 80 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

func FuzzJournalIsReadWhateverIsInIt(f *testing.F) {
	f.Add([]byte(`{"at":"2026-11-21T12:00:00Z","kind":"move-began","id":"a","what":"x"}` + "\n{"))
	f.Add([]byte("\n\n\x00{}\n[]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := readEntries(bytes.NewReader(data), nil)
		if err != nil {
			t.Fatal(err)
		}
		journal.CutShort(all)
		again, err := readEntries(bytes.NewReader(append(bytes.Clone(data), "\n{\"kind\":\"paused\",\"what\":\"\"}\n"...)), nil)
		if err != nil || len(again) != len(all)+1 {
			t.Fatalf("%d entries, with one more %d: %v", len(all), len(again), err)
		}
	})
}
