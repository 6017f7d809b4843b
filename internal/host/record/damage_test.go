package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/numavisor/numavisor/internal/journal"
)

// A pause, and a setting that is to be restored, stay in effect until an
// operator or the daemon ends them: until then the journal contains them
// exactly once, however many entries follow.
func TestRotate_CarriesOverLastingEntries(t *testing.T) {
	setting := func(i int, held bool) journal.Entry {
		e := entry(i, journal.EffectSetting.Done(), fmt.Sprint("setting", i))
		e.Effect, e.Setting = journal.EffectSetting, &journal.SettingChange{
			Path:   "/proc/sys/kernel/numa_balancing",
			Former: "1",
			Value:  "0",
			Held:   held,
		}
		return e
	}
	paused, changed := entry(0, journal.Paused, ""), setting(1, true)
	resumed, restored := entry(500, journal.Resumed, ""), setting(501, false)
	count := func(j Journal, want journal.Entry) (n int) {
		for _, e := range mustRead(t, j, Filter{}) {
			if e.Kind == want.Kind && e.At.Equal(want.At) {
				n++
			}
		}
		return n
	}
	j := Journal{Folder: t.TempDir(), Most: 2000}
	fill := func(from int) {
		for i := range 100 {
			mustAppend(t, j, entry(from+i, journal.Raised, "", "a"))
		}
	}
	mustAppend(t, j, paused, changed)
	for round := range 3 {
		fill(2 + 100*round)
		if count(j, paused) != 1 || count(j, changed) != 1 {
			t.Fatalf("the journal has the pause %d times, the setting %d times", count(j, paused), count(j, changed))
		}
	}
	mustAppend(t, j, resumed, restored)
	fill(600)
	if all := mustRead(t, j, Filter{}); count(j, paused)+count(j, changed)+count(j, resumed)+count(j, restored) != 0 ||
		len(all) > 60 {
		t.Errorf("a finished entry was carried over: %+v", all)
	}
}

// A move that is interrupted and resumed forever does not fill the journal with
// its steps.
func TestRotate_LeavesStepsBehind(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 4000}
	mustAppend(t, j, entry(0, journal.MoveBegan, "long", "a"))
	for i := range 300 {
		mustAppend(t, j, entry(1+i, journal.MoveStep, "long", "a"), entry(1+i, journal.MoveUndoing, "long", "a"))
		info, err := os.Stat(filepath.Join(j.Folder, historyFile))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 4000+2*400 {
			t.Fatalf("after %d steps the file has %d bytes", i+1, info.Size())
		}
	}
	h, err := j.Read(Filter{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[journal.Kind]int{}
	for _, e := range h.Entries {
		kinds[e.Kind]++
	}
	if kinds[journal.MoveBegan] != 1 || kinds[journal.MoveUndoing] < 10 || kinds[journal.MoveStep] < 10 {
		t.Errorf("%v", kinds)
	}
}

// sick is a file on a disk with read errors.
type sick struct{ *os.File }

func (sick) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

// If the end of the complete part of the file is unknown, nothing is cut off.
func TestExtend_LeavesAnUnreadableFile(t *testing.T) {
	j := Journal{Folder: t.TempDir()}
	mustAppend(t, j, entry(0, journal.MoveBegan, "m", "a"))
	path := filepath.Join(j.Folder, historyFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := extend(sick{file}, []byte("{}\n")); err == nil || !strings.Contains(err.Error(), "input/output") {
		t.Errorf("appending to it: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("it contained %q, now %q: %v", before, after, err)
	}
}

// A reader during rotation sees each entry: no completed move looks
// interrupted.
func TestRead_SeesEachEntryDuringRotation(t *testing.T) {
	j := Journal{Folder: t.TempDir(), Most: 600}
	var writer sync.WaitGroup
	ended := make(chan struct{})
	writer.Go(func() {
		defer close(ended)
		for i := range 150 {
			if err := j.Append(entry(i, journal.Started, fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		}
	})
	defer writer.Wait()
	for reading := true; reading; {
		select {
		case <-ended:
			reading = false
		default:
		}
		all, err := j.Entries()
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(all); i++ {
			if gap := all[i].At.Sub(all[i-1].At).Minutes(); gap != 1 {
				t.Fatalf("entry %s follows on %s", all[i].ID, all[i-1].ID)
			}
		}
	}
}
