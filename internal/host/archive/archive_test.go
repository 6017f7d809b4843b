package archive

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	text := "A host.\n-- sys/cpu/online --\n0-3\n-- sys/bus/dev0 --\n-> ../cpu\n"
	if err := Unpack(strings.NewReader(text), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sys/cpu/online", "sys/bus/dev0/online"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "0-3\n" {
			t.Errorf("%s: %q, %v; want 0-3", name, got, err)
		}
	}
}

func TestUnpack_StaysInItsFolder(t *testing.T) {
	outside := t.TempDir()
	for name, text := range map[string]string{
		"parent":   "-- ../escaped --\nx\n",
		"absolute": "-- /escaped --\nx\n",
		"link":     "-- sys/a --\n-> " + outside + "\n-- sys/a/escaped --\nx\n",
		"relative": "-- sys/a --\n-> ../../..\n",
	} {
		if err := Unpack(strings.NewReader(text), filepath.Join(t.TempDir())); err == nil {
			t.Errorf("%s: is unpacked", name)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("files outside of the folder: %v", left)
	}
}

func TestUnpack_NotAnArchive(t *testing.T) {
	for _, text := range []string{"", "nodes: [0, 1]\n"} {
		if err := Unpack(strings.NewReader(text), t.TempDir()); !errors.Is(err, ErrNotArchive) {
			t.Errorf("%q: %v, want ErrNotArchive", text, err)
		}
	}
	if err := Unpack(strings.NewReader(strings.Repeat("\x00", maxSize+1)), t.TempDir()); err == nil {
		t.Error("an archive without end is unpacked")
	}
}
