package repeat

import (
	"os"
	"path/filepath"
	"testing"
)

// Tests run at the same time and several of a package may note a fault: none may replace the name of another.
func TestNote_AddsTheNameOfTheTest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults")
	t.Setenv(Variable, path)
	t.Run("one", func(t *testing.T) { Note(t) })
	t.Run("two", func(t *testing.T) { Note(t) })
	got, err := os.ReadFile(path)
	if want := t.Name() + "/one\n" + t.Name() + "/two\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// Outside of lab/suite, which sets the variable, a test notes nothing.
func TestNote_WithoutAFileNotesNothing(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	t.Setenv(Variable, "")
	Note(t)
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
