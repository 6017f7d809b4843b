package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestFileCache_ReturnsNewContent(t *testing.T) {
	root := files(t, map[string]string{"a": "1", "b": strings.Repeat("long ", 10000)})
	for _, room := range []int{0, 1, 10} {
		k := root.NewFileCache(room)
		a, b := k.File("a"), k.Table("b")
		for _, text := range []string{"2", "another text\n", ""} {
			if err := os.WriteFile(root.path("a"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if got, err := a.Read(); err != nil || string(got) != text {
				t.Errorf("room for %d: %q, error %v; want %q", room, got, err, text)
			}
			if got, err := b.Read(); err != nil || len(got) != 50000 {
				t.Errorf("room for %d: %d bytes of the long file, error %v", room, len(got), err)
			}
		}
		a.Close()
		b.Close()
		if k.room != room {
			t.Errorf("the cache may leave %d files open at first, %d after all were closed", room, k.room)
		}
	}
}

func TestFileCache_LeavesAtMostTheLimitOpen(t *testing.T) {
	root := files(t, map[string]string{"a": "1", "b": "2", "c": "3"})
	before := openFiles(t)
	k := root.NewFileCache(2)
	cached := []*CachedFile{k.File("a"), k.File("b"), k.File("c")}
	for range 3 {
		for _, f := range cached {
			if _, err := f.Read(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now := openFiles(t); now != before+2 {
		t.Errorf("%d files open, %d before", now, before)
	}
	cached[0].Close()
	if _, err := cached[2].Read(); err != nil { // the file now may stay open
		t.Fatal(err)
	}
	if now := openFiles(t); now != before+2 || cached[2].fd < 0 {
		t.Errorf("%d files open, %d before", now, before)
	}
	for _, f := range cached {
		f.Close()
		f.Close()
	}
	if now := openFiles(t); now != before {
		t.Errorf("%d files open at the end, %d before", now, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestFileCache_ReportsAMissingFile(t *testing.T) {
	f := files(t, nil).NewFileCache(1).File("not/there")
	if _, err := f.Read(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "not/there") {
		t.Error(err)
	}
	var none *CachedFile
	none.Close() // a memory source that was never found can be closed, too
}

// The kernel's own files: one that comes in pieces, one of a process.
func TestFileCache_ReadsThisMachine(t *testing.T) {
	k := Live.NewFileCache(10)
	for _, f := range []*CachedFile{k.Table("proc/vmstat"), k.File("proc/self/stat"), k.File("proc/stat"),
		k.File("proc/self/schedstat")} {
		for range 2 {
			got, err := f.Read()
			if err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(f.path)
			if err != nil {
				t.Fatal(err)
			}
			if lines, want := bytes.Count(got, []byte("\n")), bytes.Count(whole, []byte("\n")); lines != want ||
				lines == 0 {
				t.Errorf("%s: %d lines, read at once %d", f.path, lines, want)
			}
		}
		f.Close()
	}
}

func TestOpenFiles(t *testing.T) {
	most, err := OpenFiles()
	if err != nil || most < 64 {
		t.Errorf("%d, error %v", most, err)
	}
}

// MemoryReader must agree with Root.Memory: same choice of sources, same
// figures, same label.
func TestMemoryReader_AgreesWithRootMemory(t *testing.T) {
	for _, c := range []struct {
		name, source string
		pageSize     topology.Bytes
		memory       topology.Bytes
	}{
		{"anon", "", 0, 128 * mib}, {"memfd", "memfd", 0, 128 * mib}, {"huge", "", 2 * mib, 128 * mib}, {"huge", "",
			2 * mib, 256 * mib},
		{"hugefd", "memfd", 2 * mib, 128 * mib}, {"cells", "", 0, 128 * mib}, {"file", "file", 0, 128 * mib}, {"plain",
			"", 0, 128 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, pid := captured(t, c.name)
			g := inventory.Guest{
				PID:    pid,
				Config: inventory.Config{Source: c.source, PageSize: c.pageSize, Memory: c.memory},
			}
			want, wantSource, err := root.Memory(g)
			if err != nil {
				t.Fatal(err)
			}
			m, err := root.NewFileCache(10).OpenMemory(g)
			t.Cleanup(func() { m.Close() }) // no pages of it, where numa_maps is the source
			for range emptyTurns + 1 {
				got, source := byNode{}, ""
				if err == nil {
					source, err = m.Read(got)
				}
				if errors.Is(err, ErrOnlyNUMAMaps) && wantSource == sourceNUMAMaps {
					return
				}
				for node, amount := range got {
					if amount == 0 {
						delete(got, node)
					}
				}
				if diff := cmp.Diff(want, got); err != nil || source != wantSource || diff != "" {
					t.Fatalf("source %q, want %q, error %v\n%s", source, wantSource, err, diff)
				}
			}
		})
	}
}

func TestMemoryReader_CountsNewHugePages(t *testing.T) {
	root, pid := captured(t, "anon")
	g := inventory.Guest{PID: pid}
	group, _, err := root.GuestCgroupOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	m, err := root.NewFileCache(10).OpenMemory(g)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	before := byNode{}
	if _, err := m.Read(before); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(group.Top.file("hugetlb.2MB.numa_stat"), []byte("total=2097152 N0=0 N1=0 N2=0 "+
		"N3=2097152\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range emptyTurns {
		now := byNode{}
		if _, err := m.Read(now); err != nil {
			t.Fatal(err)
		}
		if now[3] == before[3]+2*mib {
			return
		}
	}
	t.Error("the new huge pages are not counted")
}

func TestVCPUThreadsOfCapturedGuests(t *testing.T) {
	for _, name := range []string{"anon", "cells", "huge"} {
		root, pid := captured(t, name)
		var want []int
		threads, _, err := root.Threads(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			if thread.Role == inventory.RoleVCPU {
				want = append(want, thread.TID)
			}
		}
		known := map[int]string{1: "a thread that has ended"}
		for range 2 {
			got, named, err := root.VCPUThreads(pid, known)
			if diff := cmp.Diff(want, got); err != nil || !named || diff != "" || len(known) != len(threads) {
				t.Errorf("%s: named %v, error %v, %d threads known of %d\n%s", name, named, err, len(known),
					len(threads), diff)
			}
		}
	}
}

func TestThreadsWithoutNamesAreAllReturned(t *testing.T) {
	root := files(t,
		map[string]string{"proc/7/task/7/comm": "qemu-system-x86\n", "proc/7/task/9/comm": "qemu-system-x86\n"})
	if tids, named, err := root.VCPUThreads(7, map[int]string{}); fmt.Sprint(tids) != "[7 9]" || named || err != nil {
		t.Errorf("%v, named %v, error %v", tids, named, err)
	}
	if _, _, err := root.VCPUThreads(8, map[int]string{}); !Gone(err) {
		t.Errorf("a process that does not exist: %v", err)
	}
}
