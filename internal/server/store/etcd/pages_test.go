package etcd_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/topology"
)

// residentOf returns how much of a file this process has in memory.
func residentOf(t *testing.T, path string) (sum topology.Bytes) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	within := false
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case strings.Contains(name, "-"): // the first line of a mapping
			within = strings.HasSuffix(strings.TrimSpace(line), path)
		case name == "Rss" && within:
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 50)
			if err != nil {
				t.Fatal(err)
			}
			sum += topology.Bytes(kib) * topology.KiB
		}
	}
	return sum
}

func TestScan_LeavesNoPagesInMemory(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first, err := etcd.Open(t.Context(), etcd.Config{Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 400_000) // random: the store compresses the rest
	for i := range 40 {
		_, _ = rand.Read(value)
		put(t, first, fmt.Sprintf("/a/%03d", i), string(value))
	}
	// A member answers from its buffer what it wrote last. After a restart it can only read the file.
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, etcd.Config{Folder: folder})
	database := folder + "/etcd/member/snap/db"
	if records, _, err := s.List(t.Context(), "/a/"); err != nil || len(records) != 40 {
		t.Fatal(len(records), err)
	}
	read := residentOf(t, database)
	if read < 8*topology.MiB {
		t.Fatalf("%v of the database are in memory after all of it was read: the test measures another file", read)
	}
	seen := 0
	if _, err := s.Scan(t.Context(), []string{"/a/"}, func(part []store.Record) error {
		seen += len(part)
		return nil
	}); err != nil || seen != 40 {
		t.Fatal(seen, err)
	}
	if left := residentOf(t, database); left > read/8 {
		t.Errorf("%v of the database are in memory after a scan, %v before", left, read)
	}
	if found := values(t, s, "/a/"); len(found) != 40 {
		t.Errorf("%d records", len(found))
	}
}
