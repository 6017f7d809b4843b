package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReleaseOf(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n", "bookworm"},
		{"ID='debian'\nVERSION_CODENAME=\"trixie\"\n", "trixie"},
		{"ID=debian\n", ""}, // testing and unstable have no backports
		{"ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=jammy\n", ""},
		{"", ""},
	} {
		path := filepath.Join(t.TempDir(), "os-release")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := releaseOf(path); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestArchiveOf(t *testing.T) {
	const targets = "bookworm-updates http://updates.example/debian/\nbookworm http://mirror.example/debian/\n"
	if got, err := archiveOf("bookworm", targets); got != "http://mirror.example/debian/" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := archiveOf("trixie", targets); err == nil {
		t.Errorf("%q for a release that apt does not know", got)
	}
}

func TestFirmwareArguments(t *testing.T) {
	folder := t.TempDir()
	qemu := emulatorIn(folder)
	if got := firmwareArguments(qemu); got != nil {
		t.Errorf("%q without any firmware", got)
	}
	firmware := filepath.Join(folder, "usr", "share", "qemu")
	if err := os.MkdirAll(firmware, 0o755); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"-L", firmware}, firmwareArguments(qemu)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// QEMU is started by the loader and with the libraries of its own folder, whose path may have spaces.
func TestStartEmulator(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a folder")
	usr := filepath.Join(folder, "usr")
	lib := filepath.Join(usr, "lib", "x86_64-linux-gnu")
	for file, text := range map[string]string{
		emulatorIn(folder):                         startEmulator,
		filepath.Join(lib, "ld-linux-x86-64.so.2"): "#!/bin/sh\nprintf '%s\\n' \"$QEMU_MODULE_DIR\" \"$@\"\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), emulatorIn(folder), "-m", "64 M").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(lib, "qemu"), "--argv0", emulatorIn(folder), "--library-path", lib,
		filepath.Join(usr, "bin", "qemu-system-x86_64"), "-m", "64 M"}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(out)), "\n")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestQEMUVersion(t *testing.T) {
	for _, c := range []struct {
		version           qemuVersion
		stale, interrupts bool
		plugin            int
	}{
		{qemuVersion{7, 2}, true, true, 1},
		{qemuVersion{8, 1}, false, true, 1},
		{qemuVersion{9, 0}, false, true, 2},
		{qemuVersion{10, 1}, false, true, 3},
		{qemuVersion{10, 2}, false, false, 3},
		{qemuVersion{11, 0}, false, false, 3},
		{qemuVersion{11, 1}, false, false, 7},
		{qemuVersion{12, 0}, false, false, 7},
	} {
		v := c.version
		if v.staleCode() != c.stale || v.lostInterrupts() != c.interrupts || v.pluginVersion() != c.plugin {
			t.Errorf("%v: stale code %v, lost interrupts %v, plugin version %d; want %+v", v, v.staleCode(),
				v.lostInterrupts(), v.pluginVersion(), c)
		}
	}
}

// A machine without a network does not try to download at each boot, but again after a day.
func TestWhyUnavailable(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "qemu")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := whyUnavailable(folder, now); err != nil {
		t.Errorf("%v, but QEMU was downloaded", err)
	}
	if err := os.WriteFile(filepath.Join(folder, unavailable), []byte("no network"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after time.Duration
		left  bool
	}{{0, true}, {23 * time.Hour, true}, {25 * time.Hour, false}} {
		if err := whyUnavailable(folder, now.Add(c.after)); err == nil || err.Error() != "no network" {
			t.Errorf("after %v: %v", c.after, err)
		}
		if _, err := os.Stat(folder); (err == nil) != c.left {
			t.Errorf("after %v: the folder: %v, want it left: %v", c.after, err, c.left)
		}
	}
}
