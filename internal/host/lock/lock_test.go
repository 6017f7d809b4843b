package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/lock"
)

// A waiter gives up when its context ends, and its error names the holder.
func TestExclusive_GivesUpWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := lock.Try(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = lock.Exclusive(ctx, path)
	var taken *lock.TakenError
	if !errors.As(err, &taken) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a lock that is held: %v; wanted a TakenError and the deadline", err)
	}
	if want := fmt.Sprintf("process %d (", os.Getpid()); !strings.Contains(taken.Holder, want) {
		t.Errorf("holder %q; wanted %q in it", taken.Holder, want)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exclusive(t.Context(), path); err != nil {
		t.Errorf("a lock that was released: %v", err)
	}
}

// A lock file that an older version made readable for all is restricted, and a
// new one belongs to its owner only from the start, whatever the umask.
func TestLockFile_IsItsOwnersOnly(t *testing.T) {
	folder := t.TempDir()
	old := filepath.Join(folder, "old")
	if err := os.WriteFile(old, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{old, filepath.Join(folder, "new")} {
		l, err := lock.Try(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if mode := modeOf(t, path); mode != 0o600 {
			t.Errorf("%s has mode %o; wanted 600", path, mode)
		}
	}
}

// Symbolic links in place of a lock, and the files they point to, are left
// alone.
func TestExclusive_FollowsNoSymbolicLink(t *testing.T) {
	folder := t.TempDir()
	target, link := filepath.Join(folder, "target"), filepath.Join(folder, "lock")
	if err := os.WriteFile(target, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exclusive(t.Context(), link); err == nil {
		t.Error("a symbolic link was accepted as a lock")
	}
	if _, err := lock.Shared(t.Context(), link); err == nil {
		t.Error("a symbolic link was accepted as a shared lock")
	}
	if mode := modeOf(t, target); mode != 0o644 {
		t.Errorf("the link's target has mode %o now; wanted 644", mode)
	}
}

// Only a folder of the name numavisor belongs to Numavisor: with --socket
// /run/nv.sock the folder is /run.
func TestFolder_RestrictsOnlyNumavisorsOwn(t *testing.T) {
	above := t.TempDir()
	for name, want := range map[string]os.FileMode{"numavisor": 0o700, "run": 0o755} {
		path := filepath.Join(above, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := lock.Folder(path); err != nil {
			t.Fatal(err)
		}
		if mode := modeOf(t, path); mode != want {
			t.Errorf("%s has mode %o; wanted %o", path, mode, want)
		}
	}
	fresh := filepath.Join(above, "fresh")
	if err := lock.Folder(fresh); err != nil {
		t.Fatal(err)
	}
	if mode := modeOf(t, fresh); mode != 0o700 {
		t.Errorf("a new folder has mode %o; wanted 700", mode)
	}
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}
