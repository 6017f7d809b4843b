package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func someAlarms() Alarms {
	raised := alarm.Alarm{Quantity: alarm.GuestWait, Object: inventory.GuestRef("db"), Severity: alarm.Critical,
		Value: 0.4, Threshold: 0.3, Worst: 0.5, Guests: []string{"db"}, Why: "it waits", First: noon, Last: noon.Add(time.Minute)}
	over := raised
	over.Object, over.Cleared = inventory.GuestRef("web"), noon.Add(time.Hour)
	return Alarms{
		Written: noon.Add(2 * time.Hour),
		Cleared: []alarm.Alarm{over},
		State: alarm.State{Tracks: []alarm.Track{
			{
				Quantity: alarm.GuestWait,
				Object:   inventory.GuestRef("db"),
				Source:   "schedstat",
				At:       noon,
				Alarm:    &raised,
			},
			{
				Quantity: alarm.NodeCPU,
				Object:   inventory.NodeRef(1),
				At:       noon,
				Warning:  alarm.Stay{Side: alarm.Beyond, Lasted: 40 * time.Second},
			},
		}},
	}
}

func TestAlarms_SurviveARestart(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "lib", "numavisor")
	if a, err := LoadAlarms(folder); err != nil || !cmp.Equal(a, Alarms{}) {
		t.Errorf("the first start has %+v, %v", a, err)
	}
	if _, err := ReadAlarms(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	want := someAlarms()
	for range 2 {
		if err := SaveAlarms(folder, want); err != nil {
			t.Fatal(err)
		}
		for _, read := range []func(string) (Alarms, error){ReadAlarms, LoadAlarms} {
			if got, err := read(folder); err != nil || !cmp.Equal(got, want) {
				t.Errorf("%v, %s", err, cmp.Diff(want, got))
			}
		}
		want.Written = want.Written.Add(time.Minute)
	}
}

// A write of the new file that is interrupted at any point harms nothing.
func TestSaveAlarms_InterruptedLeavesTheLastOne(t *testing.T) {
	folder := t.TempDir()
	want := someAlarms()
	if err := SaveAlarms(folder, want); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "alarms.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut <= len(whole); cut += 97 {
		if err := os.WriteFile(path+".new", whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := LoadAlarms(folder); err != nil || !cmp.Equal(got, want) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	want.Cleared = nil
	if err := SaveAlarms(folder, want); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadAlarms(folder); err != nil || !cmp.Equal(got, want) {
		t.Errorf("after the next save: %+v, %v", got, err)
	}
}

func TestLoadAlarms_SetsAsideOtherFiles(t *testing.T) {
	saved := t.TempDir()
	if err := SaveAlarms(saved, someAlarms()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(saved, "alarms.json"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := map[string]string{
		"":                            "0 bytes that are not a complete JSON document",
		"\x00\x00\x00\x00":            "complete JSON",
		"{}":                          `kind is ""`,
		`{"kind":"else","version":1}`: `kind is "else"`,
		strings.Replace(string(whole), `"version":1`, `"version":9`, 1): "version 9; this program supports version 1",
		string(whole) + "{": "complete JSON",
	}
	for cut := 1; cut < len(whole)-1; cut += 31 {
		foreign[string(whole[:cut])] = "complete JSON"
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "alarms.json")
	renamed := 0
	for text, says := range foreign {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var bad *UnreadableError
		if _, err := ReadAlarms(folder); !errors.As(err, &bad) || bad.SetAside != "" ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: read with %v", text, err)
		}
		a, err := LoadAlarms(folder)
		renamed++
		aside := fmt.Sprintf("%s.unreadable-%d", path, renamed)
		if !errors.As(err, &bad) || bad.SetAside != aside || !strings.Contains(err.Error(), aside) ||
			!cmp.Equal(a, Alarms{}) {
			t.Fatalf("%.40q: loaded with %v", text, err)
		}
		if data, err := os.ReadFile(aside); err != nil || string(data) != text {
			t.Errorf("%.40q is lost: %v", text, err)
		}
		if a, err := LoadAlarms(folder); err != nil || !cmp.Equal(a, Alarms{}) {
			t.Errorf("the next start: %v", err)
		}
	}
}

// A file that cannot be read is not a damaged file, and stays as it is.
func TestLoadAlarms_LeavesAnUnreadableFile(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "alarms.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	var bad *UnreadableError
	if _, err := LoadAlarms(folder); err == nil || errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	if err := SaveAlarms(folder, Alarms{}); err == nil || !strings.Contains(err.Error(), "choose another folder") {
		t.Errorf("%v", err)
	}
}

func TestAlarms_RetainDropsOldOnes(t *testing.T) {
	now := noon.AddDate(1, 0, 0)
	cleared := func(ago time.Duration) alarm.Alarm {
		return alarm.Alarm{Object: inventory.GuestRef(ago.String()), Cleared: now.Add(-ago)}
	}
	a := Alarms{Cleared: []alarm.Alarm{cleared(31 * 24 * time.Hour), cleared(29 * 24 * time.Hour)}}
	a.Retain([]alarm.Alarm{{Object: inventory.GuestRef("lasts")}, cleared(0)}, now)
	if len(a.Cleared) != 2 || a.Cleared[0].Object != inventory.GuestRef((29*24*time.Hour).String()) ||
		a.Cleared[1].Object != inventory.GuestRef("0s") {
		t.Errorf("%+v", a.Cleared)
	}
	for i := range 1500 {
		a.Retain([]alarm.Alarm{{Object: inventory.GuestRef(fmt.Sprint(i)), Cleared: now}}, now)
	}
	if len(a.Cleared) != 1000 || a.Cleared[0].Object != inventory.GuestRef("500") ||
		a.Cleared[999].Object != inventory.GuestRef("1499") {
		t.Errorf("%d alarms remain, from %s", len(a.Cleared), a.Cleared[0].Object)
	}
}
