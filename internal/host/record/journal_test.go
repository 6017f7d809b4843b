package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

var midday = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func entry(i int, kind journal.Kind, id string, guests ...string) journal.Entry {
	e := journal.Entry{
		At:     midday.Add(time.Duration(i) * time.Minute),
		Kind:   kind,
		ID:     id,
		Guests: guests,
		What:   fmt.Sprintf("entry %d\nin two lines", i),
	}
	if kind == journal.MoveBegan {
		e.Move = &plan.Move{Kind: plan.MoveGuest}
	}
	return e
}

func mustAppend(t *testing.T, j Journal, all ...journal.Entry) {
	t.Helper()
	for _, e := range all {
		if err := j.Append(e); err != nil {
			t.Fatal(err)
		}
	}
}

func mustRead(t *testing.T, j Journal, f Filter) []journal.Entry {
	t.Helper()
	h, err := j.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return h.Entries
}

func TestJournal_StoresAndFilters(t *testing.T) {
	j := Journal{Folder: filepath.Join(t.TempDir(), "made", "for it")}
	if got := mustRead(t, j, Filter{}); len(got) != 0 {
		t.Errorf("a journal that does not exist yet has %v", got)
	}
	all := []journal.Entry{entry(0, journal.Started, ""), entry(1, journal.MoveBegan, "m", "a", "b"),
		entry(2, journal.MoveDone, "m", "a", "b"), entry(3, journal.Drifted, "", "c")}
	mustAppend(t, j, all...)
	for _, c := range []struct {
		name string
		f    Filter
		want []journal.Entry
	}{
		{"all", Filter{}, all},
		{"of a guest", Filter{Guest: "b"}, all[1:3]},
		{"since", Filter{Since: midday.Add(2 * time.Minute)}, all[2:]},
		{"the newest", Filter{Last: 1}, all[3:]},
		{"the newest of a guest", Filter{Guest: "a", Last: 1}, all[2:3]},
		{"more than exist", Filter{Last: 9}, all},
	} {
		if diff := cmp.Diff(c.want, mustRead(t, j, c.f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A crash may leave any part of the last line.
func TestJournal_RepairsATornLine(t *testing.T) {
	first, second, third := entry(0, journal.Started, ""), entry(1, journal.MoveBegan, "m",
		"a"), entry(2, journal.MoveDone, "m", "a")
	j := Journal{Folder: t.TempDir()}
	mustAppend(t, j, first, second)
	path := filepath.Join(j.Folder, historyFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line := bytes.IndexByte(text, '\n') + 1
	for cut := line; cut < len(text); cut++ {
		if err := os.WriteFile(path, text[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]journal.Entry{first}, mustRead(t, j, Filter{})); diff != "" {
			t.Fatalf("cut at %d (-want +got):\n%s", cut, diff)
		}
		mustAppend(t, j, third)
		if diff := cmp.Diff([]journal.Entry{first, third}, mustRead(t, j, Filter{})); diff != "" {
			t.Fatalf("cut at %d, then appended (-want +got):\n%s", cut, diff)
		}
	}
}

func TestRead_NamesUnreadableLines(t *testing.T) {
	j := Journal{Folder: t.TempDir()}
	mustAppend(t, j, entry(0, journal.Started, ""))
	file, err := os.OpenFile(filepath.Join(j.Folder, historyFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(file, "by hand")
	file.Close()
	mustAppend(t, j, entry(1, journal.Stopped, ""))
	h, err := j.Read(Filter{})
	if err != nil || len(h.Entries) != 2 || len(h.Unreadable) != 1 ||
		!strings.HasPrefix(h.Unreadable[0], "history.jsonl, line 2: ") {
		t.Errorf("%v: %+v", err, h)
	}
}

func TestJournal_ErrorsNameTheFile(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, historyFile), 0o755); err != nil {
		t.Fatal(err)
	}
	j := Journal{Folder: folder}
	if _, err := j.Read(Filter{}); err == nil || !strings.Contains(err.Error(), historyFile) {
		t.Errorf("reading a folder: %v", err)
	}
	if err := j.Append(entry(0, journal.Started, "")); err == nil || !strings.Contains(err.Error(), historyFile) {
		t.Errorf("writing a folder: %v", err)
	}
	j.Folder = filepath.Join(folder, "file")
	if err := os.WriteFile(j.Folder, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(entry(0, journal.Started, "")); err == nil || !strings.Contains(err.Error(), j.Folder) {
		t.Errorf("a file as folder: %v", err)
	}
}

// After any number of rotations a running move is in the journal exactly once,
// complete, with all that is known of it; disk use is limited.
func TestRotate_CarriesOverUnfinishedMoves(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 2000}
	began, undoing := entry(0, journal.MoveBegan, "long", "a"), entry(1, journal.MoveUndoing, "long", "a")
	mustAppend(t, j, began, undoing)
	for i := range 200 {
		id := fmt.Sprint("short", i)
		mustAppend(t, j, entry(2+i, journal.MoveBegan, id, "b"), entry(2+i, journal.MoveDone, id, "b"))
		var got []journal.Entry
		for _, e := range mustRead(t, j, Filter{}) {
			if e.ID == "long" {
				got = append(got, e)
			}
		}
		if diff := cmp.Diff([]journal.Entry{began, undoing}, got); diff != "" {
			t.Fatalf("after %d moves (-want +got):\n%s", i+1, diff)
		}
	}
	all := mustRead(t, j, Filter{})
	if open := journal.InterruptedMoves(all); len(open) != 1 || open[0].ID != "long" {
		t.Errorf("unfinished: %v", open)
	}
	if newest := all[len(all)-1]; newest.ID != "short199" || len(all) < 15 {
		t.Errorf("%d entries, the newest of %s", len(all), newest.ID)
	}
	files, err := os.ReadDir(j.Folder)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if len(files) != 4 || total > 3*(2000+600) {
		t.Errorf("%d files of %d bytes in all: %v", len(files), total, files)
	}
	mustAppend(t, j, entry(999, journal.MoveUndone, "long", "a"))
	if open := journal.InterruptedMoves(mustRead(t, j, Filter{})); len(open) > 0 {
		t.Errorf("completed, but reported as unfinished: %v", open)
	}
}

// A crash during rotation: at any step, no entry of an unfinished move is lost
// or duplicated.
func TestRotate_Crash(t *testing.T) {
	began := entry(0, journal.MoveBegan, "m", "a")
	for _, left := range []map[string]string{ // former name of each file: new, current, .1
		{historyFile + ".new": historyFile, historyFile: historyFile},
		{historyFile + ".new": historyFile, historyFile + ".1": historyFile},
		{historyFile: historyFile, historyFile + ".1": historyFile},
	} {
		j := Journal{Folder: t.TempDir()}
		mustAppend(t, j, began)
		text, err := os.ReadFile(filepath.Join(j.Folder, historyFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(j.Folder, historyFile)); err != nil {
			t.Fatal(err)
		}
		for name := range left {
			if err := os.WriteFile(filepath.Join(j.Folder, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		j.Most = 1
		mustAppend(t, j, entry(1, journal.Started, ""), entry(2, journal.Stopped, ""))
		all := mustRead(t, j, Filter{})
		if open := journal.InterruptedMoves(all); len(open) != 1 || len(all) != 3 {
			t.Errorf("%v: %+v", left, all)
		}
	}
}

func TestAppend_ManyWriters(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 1500}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 5 {
				if err := j.Append(entry(i, journal.MoveBegan, fmt.Sprintf("%d-%d", w, i), "g")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if open := journal.InterruptedMoves(mustRead(t, j, Filter{})); len(open) != 20 {
		t.Errorf("%d moves of 20", len(open))
	}
}

// Whatever a file contains: it can be read, an entry can be appended and is
// then the last one; no readable entry is lost.
func FuzzHistory(f *testing.F) {
	f.Add([]byte(`{"at":"2026-03-01T12:00:00Z","kind":"move-began","id":"m","what":"x"}` + "\n"))
	f.Add([]byte("{}\n\n\x00\x00"))
	f.Add([]byte("[1]\nnull\n{\"at\":7}\n{\"id\":\"m\"}\n{\"id\":\"m\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		j := Journal{Folder: t.TempDir()}
		if err := os.WriteFile(filepath.Join(j.Folder, historyFile), text, 0o644); err != nil {
			t.Fatal(err)
		}
		before := mustRead(t, j, Filter{})
		added := entry(0, journal.Started, "")
		mustAppend(t, j, added)
		after := mustRead(t, j, Filter{})
		if len(after) != len(before)+1 {
			t.Fatalf("%d entries, then %d", len(before), len(after))
		}
		if diff := cmp.Diff(append(before, added), after); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// The caller goes on only with what is on the disk: it must not lose the error.
func TestAppend_ReportsAFullDisk(t *testing.T) {
	j := Journal{Folder: t.TempDir()}
	if err := os.Symlink("/dev/full", filepath.Join(j.Folder, historyFile)); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(entry(0, journal.Started, "")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
}
