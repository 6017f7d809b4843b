package main

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

// newFleet makes a data folder.
func newFleet(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "fleet") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := makeFleet(t.Context(), io.Discard, folder, "", config{Address: "127.0.0.1:0"}, ca); err != nil {
		t.Fatal(err)
	}
	return folder
}

// command runs a command line, and returns its status and output.
func command(args ...string) (int, string) {
	var out bytes.Buffer
	status := run(args, &out, &out)
	return status, out.String()
}

func TestBackup_RestoresRecordsCAAndConfiguration(t *testing.T) {
	folder, file := newFleet(t), filepath.Join(t.TempDir(), "fleet.tar")
	if status, out := command("backup", "--data", folder, file); status != exitDone || !strings.Contains(out, "records") {
		t.Fatalf("status %d: %s", status, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != secretMode {
		t.Errorf("got %v, %v", info, err)
	}
	to := filepath.Join(t.TempDir(), "restored")
	if status, out := command("restore", "--data", to, file); status != exitDone || !strings.Contains(out, to) {
		t.Fatalf("status %d: %s", status, out)
	}
	for _, s := range settingsFiles() {
		want, err := os.ReadFile(filepath.Join(folder, s.name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(to, s.name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs: %v", s.name, err)
		}
		if info, err := os.Stat(filepath.Join(to, s.name)); err != nil || info.Mode().Perm() != s.mode {
			t.Errorf("%s: %v, %v", s.name, info, err)
		}
	}
	conf, err := readConfig(to)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := readCA(to)
	if err != nil {
		t.Fatal(err)
	}
	records, err := openStore(t.Context(), to, conf, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records.Get(t.Context(), store.Users+"admin"); err != nil {
		t.Error(err)
	}
	if err := records.Close(); err != nil {
		t.Error(err)
	}
	if status, out := command("restore", "--data", to, file); status != exitFailed ||
		!strings.Contains(out, "has a fleet already") {
		t.Errorf("into a fleet: status %d: %s", status, out)
	}
}

// runServer runs a server until the function that it returns is called.
func runServer(t *testing.T, folder string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c := runCommand()
	c.SetErr(io.Discard)
	c.SetArgs([]string{"--data", folder, "--listen", "127.0.0.1:0"})
	go func() { ended <- c.ExecuteContext(ctx) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(folder, socketFile)); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the server ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the server does not take backups")
		}
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A running server makes the backup itself: its records are locked.
func TestBackup_WhileTheServerRuns(t *testing.T) {
	folder, file := newFleet(t), filepath.Join(t.TempDir(), "fleet.tar")
	stop := runServer(t, folder)
	if status, out := command("backup", "--data", folder, file); status != exitDone {
		t.Errorf("status %d: %s", status, out)
	}
	stop()
	if status, out := command("backup", "--data", folder, file); status != exitDone {
		t.Errorf("after its end: status %d: %s", status, out)
	}
}

func TestRestore_RefusesWhatIsNoBackup(t *testing.T) {
	folder, file := newFleet(t), filepath.Join(t.TempDir(), "fleet.tar")
	if status, out := command("backup", "--data", folder, file); status != exitDone {
		t.Fatalf("status %d: %s", status, out)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)*3/4] ^= 1
	var other bytes.Buffer
	w := tar.NewWriter(&other)
	if err := w.WriteHeader(&tar.Header{Name: "../../etc/passwd", Size: 1, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"empty": nil, "cut off": whole[:len(whole)/2], "damaged": damaged,
		"of others": other.Bytes()} {
		to := t.TempDir()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if status, out := command("restore", "--data", to, file); status != exitFailed {
			t.Errorf("%s: status %d: %s", name, status, out)
		}
		if _, err := os.Stat(filepath.Join(to, configFile)); err == nil {
			t.Errorf("%s: the folder has a fleet", name)
		}
	}
	if status, _ := command("backup"); status != exitUsage {
		t.Errorf("without a file: status %d", status)
	}
}
