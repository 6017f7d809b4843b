package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
)

func put(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: key, Value: []byte(value)}}})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// values returns the values of all keys of a prefix.
func values(t *testing.T, s store.Store, prefix string) map[string]string {
	t.Helper()
	records, _, err := s.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, r := range records {
		all[r.Key] = string(r.Value)
	}
	return all
}

func TestBackup_RestoresWhatWasThere(t *testing.T) {
	t.Parallel()
	s := open(t, etcd.Config{Folder: t.TempDir()})
	for i := range 100 {
		put(t, s, fmt.Sprintf("/a/%03d", i), fmt.Sprint(i))
	}
	want := values(t, s, "/")
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, []byte("an older one"), 0o644); err != nil {
		t.Fatal(err)
	}
	made, err := s.Backup(t.Context(), file)
	if err != nil || made.Records != 100 || made.Revision < 100 || made.Size < 10_000 {
		t.Fatalf("%+v, %v", made, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	last := put(t, s, "/a/later", "not in the backup")

	to := etcd.Config{Folder: filepath.Join(t.TempDir(), "new")}
	restored, err := etcd.Restore(file, to)
	if diff := cmp.Diff(made, restored); err != nil || diff != "" {
		t.Fatalf("%v (-made +restored):\n%s", err, diff)
	}
	again := open(t, to)
	if diff := cmp.Diff(want, values(t, again, "/")); diff != "" {
		t.Errorf("the records (-want +got):\n%s", diff)
	}
	if c := <-again.Watch(t.Context(), "/", last); !errors.Is(c.Err, store.ErrCompacted) {
		t.Errorf("a watch from a revision that the backup does not have: %+v", c)
	}
	if revision := put(t, again, "/a/new", ""); revision <= last {
		t.Errorf("revision %d, after revision %d before the restoration", revision, last)
	}
}

func TestRestore_RefusesFoldersWithRecordsAndDamagedFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := open(t, etcd.Config{Folder: folder})
	put(t, s, "/a", "1")
	file := filepath.Join(t.TempDir(), "backup")
	if _, err := s.Backup(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Restore(file, etcd.Config{Folder: folder}); err == nil {
		t.Error("restored into a folder in use")
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "notes"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Restore(file, etcd.Config{Folder: full}); err == nil {
		t.Error("restored into a folder with files")
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"changed": append(append(append([]byte{}, whole[:9000]...), whole[9000]^1), whole[9001:]...),
		"short":   whole[:len(whole)-512], "cut": whole[:5000], "empty": {},
	} {
		damaged := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(damaged, text, 0o644); err != nil {
			t.Fatal(err)
		}
		to := t.TempDir()
		if _, err := etcd.Restore(damaged, etcd.Config{Folder: to}); err == nil {
			t.Errorf("%s: restored", name)
		}
		if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
			t.Errorf("%s: the folder contains %v, %v", name, left, err)
		}
	}
	if _, err := s.Backup(t.Context(), filepath.Join(t.TempDir(), "no", "folder")); err == nil {
		t.Error("a backup to a folder that does not exist")
	}
}

// TestRestore_CanBeRepeated begins where an interrupted restoration has left its files.
func TestRestore_CanBeRepeated(t *testing.T) {
	t.Parallel()
	s := open(t, etcd.Config{Folder: t.TempDir()})
	put(t, s, "/a", "1")
	file := filepath.Join(t.TempDir(), "backup")
	if _, err := s.Backup(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "restoring", "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Restore(file, etcd.Config{Folder: folder}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"/a": "1"}, values(t, open(t, etcd.Config{Folder: folder}), "/")); diff != "" {
		t.Errorf("the records (-want +got):\n%s", diff)
	}
}
