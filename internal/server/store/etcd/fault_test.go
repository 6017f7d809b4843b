package etcd_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/topology"
)

// childFolder names, to a child, the folder of the store that it writes to.
const childFolder = "NUMAVISOR_TEST_STORE"

// TestKill_LosesNoAcknowledgedWrite kills a process that runs etcd and writes, several times, and
// looks for each write that it has acknowledged. It runs alone: between fork and exec a child holds the locks of all
// files that are open, and another test that closes a store and opens it again would find it locked.
func TestKill_LosesNoAcknowledgedWrite(t *testing.T) {
	if folder := os.Getenv(childFolder); folder != "" {
		writeUntilKilled(t, folder)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, acknowledged := t.TempDir(), map[int]bool{}
	for round := range 3 {
		child := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), childFolder+"="+folder)
		output, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, written := bufio.NewScanner(output), 0
		for lines.Scan() {
			n, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatalf("the child: %s", lines.Text())
			}
			acknowledged[n] = true
			if written++; written == 40+17*round {
				_ = child.Process.Kill() // and read what it had written before
			}
		}
		_ = child.Wait()
		if written < 40 {
			t.Fatalf("round %d: the child ended after %d writes", round, written)
		}
	}
	found := values(t, open(t, etcd.Config{Folder: folder}), "/a/")
	for n := range acknowledged {
		if found[key(n)] != fmt.Sprint(n) {
			t.Errorf("the write %d was acknowledged and is lost: %q", n, found[key(n)])
		}
	}
	// Each write also counts the writes, in the same transaction.
	if sum := found["/a/sum"]; sum != fmt.Sprint(len(found)-1) || len(found) < len(acknowledged) {
		t.Errorf("%d writes, the sum is %s", len(found)-1, sum)
	}
}

func key(n int) string { return fmt.Sprintf("/a/%06d", n) }

// writeUntilKilled writes numbers and prints each one when its transaction was made.
func writeUntilKilled(t *testing.T, folder string) {
	t.Helper()
	s, err := etcd.Open(t.Context(), etcd.Config{Folder: folder})
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := s.Get(t.Context(), "/a/sum")
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		fmt.Println(err)
		return
	}
	sum, _ := strconv.Atoi(string(r.Value))
	for n := sum + 1; n < 100_000; n++ {
		r.Revision, err = s.Commit(t.Context(), store.Txn{
			If: []store.Condition{{Key: "/a/sum", Revision: r.Revision}},
			Put: []store.Put{{Key: key(n), Value: []byte(fmt.Sprint(n))},
				{Key: "/a/sum", Value: []byte(fmt.Sprint(n))}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n)
	}
}

func TestOpen_RefusesAFolderInUse(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	open(t, etcd.Config{Folder: folder})
	if s, err := etcd.Open(t.Context(), etcd.Config{Folder: folder}); err == nil {
		t.Error("two stores use one folder")
		_ = s.Close()
	} else if !strings.Contains(err.Error(), folder) {
		t.Errorf("the error does not name the folder: %v", err)
	}
}

func TestStore_SurvivesARestart(t *testing.T) {
	t.Parallel()
	c := etcd.Config{Folder: t.TempDir()}
	s, err := etcd.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	revision := put(t, s, "/a", "1")
	watch := s.Watch(t.Context(), "/", revision)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if c := <-watch; !errors.Is(c.Err, store.ErrUnavailable) {
		t.Errorf("the watch of a store that is closed: %+v", c)
	}
	if _, err := s.Commit(t.Context(), store.Txn{Delete: []string{"/a"}}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write to a store that is closed: %v", err)
	}
	began := time.Now()
	again := open(t, c)
	if took := time.Since(began); took > 5*time.Second { // 0.3 s on an idle machine
		t.Errorf("ready after %v", took)
	}
	if r, err := again.Get(t.Context(), "/a"); err != nil || r.Revision != revision {
		t.Errorf("%v, %v", r, err)
	}
}

func TestStore_RefusesWritesBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	c := etcd.Config{Folder: t.TempDir(), MinFree: 1 << 60}
	s := open(t, c)
	_, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: "/a"}}})
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), c.Folder) {
		t.Errorf("a write: %v", err)
	}
	if _, err := s.Lease(t.Context(), time.Minute); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a lease: %v", err)
	}
	if _, _, err := s.List(t.Context(), "/"); err != nil {
		t.Errorf("a list: %v", err)
	}
}

// TestStore_WritesAgainAfterItWasTooLarge writes twice what the database may hold. Nearly all of
// it is history, so the store frees it and goes on; whether etcd refuses some of the writes before
// depends on the speed of the machine.
func TestStore_WritesAgainAfterItWasTooLarge(t *testing.T) {
	t.Parallel()
	s := open(t, etcd.Config{Folder: t.TempDir(), Quota: 8 * topology.MiB, Retain: 2 * time.Second})
	value := make([]byte, 400_000) // random: the store compresses the rest
	_, _ = rand.Read(value)
	full := false
	for i := range 40 {
		_, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: fmt.Sprint("/a/", i%3), Value: value}}})
		if full = full || errors.Is(err, store.ErrUnavailable); err != nil && !full {
			t.Fatal(err)
		}
	}
	// etcd checks the quota before it writes, so the file may be above it until the store frees the history.
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: "/a/last", Value: []byte("x")}}})
		size, sizeErr := s.Size(t.Context())
		if err == nil && sizeErr == nil && size.Total <= 8*topology.MiB {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last write: %v; the size: %+v, %v", err, size, sizeErr)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestStore_ForgetsItsHistory(t *testing.T) {
	t.Parallel()
	s := open(t, etcd.Config{Folder: t.TempDir(), Retain: 300 * time.Millisecond})
	first := put(t, s, "/a", "1")
	put(t, s, "/a", "2")
	put(t, s, "/a", "3")
	for range 400 {
		time.Sleep(20 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		c := <-s.Watch(ctx, "/", first)
		cancel()
		if errors.Is(c.Err, store.ErrCompacted) {
			return
		}
	}
	t.Error("the history is as long as before")
}

// TestCluster_WithoutAQuorum runs two members, and stops one.
func TestCluster_WithoutAQuorum(t *testing.T) {
	t.Parallel()
	peers := map[string]string{"a": "http://" + address(t), "b": "http://" + address(t)}
	folder := t.TempDir()
	config := func(name string) etcd.Config {
		return etcd.Config{Folder: filepath.Join(folder, name), Timeout: 2 * time.Second,
			Member: etcd.Member{Name: name, Listen: peers[name], Peers: peers}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	second := make(chan *etcd.Store)
	go func() {
		b, err := etcd.Open(ctx, config("b"))
		if err != nil {
			t.Error(err)
		}
		second <- b
	}()
	a, err := etcd.Open(ctx, config("a"))
	b := <-second
	if err != nil || b == nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // checked elsewhere
	put(t, b, "/a", "1")
	if r, err := a.Get(t.Context(), "/a"); err != nil || string(r.Value) != "1" {
		t.Errorf("what the other member wrote: %v, %v", r, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantNoQuorum(t, a)
	again, err := etcd.Open(ctx, config("b"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close() //nolint:errcheck // checked elsewhere
	deadline := time.Now().Add(20 * time.Second)
	for _, err := a.Get(t.Context(), "/a"); err != nil; _, err = a.Get(t.Context(), "/a") {
		if time.Now().After(deadline) {
			t.Fatalf("with a quorum again: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	put(t, a, "/a", "2")
}

// wantNoQuorum checks that writes fail in time, and that reads say that they may be old.
func wantNoQuorum(t *testing.T, s store.Store) {
	t.Helper()
	began := time.Now()
	_, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: "/b"}}})
	if took := time.Since(began); !errors.Is(err, store.ErrUnavailable) || took > 10*time.Second {
		t.Errorf("a write without a quorum, after %v: %v", took, err)
	}
	r, err := s.Get(t.Context(), "/a")
	if !errors.Is(err, store.ErrStale) || string(r.Value) != "1" {
		t.Errorf("a read without a quorum: %v, %v", r, err)
	}
	records, _, err := s.List(t.Context(), "/")
	if !errors.Is(err, store.ErrStale) || len(records) != 1 {
		t.Errorf("a list without a quorum: %v, %v", records, err)
	}
	if _, err := s.Get(t.Context(), "/none"); !errors.Is(err, store.ErrStale) || !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a read of a key that does not exist: %v", err)
	}
}

// address returns a free port of this machine.
func address(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the port is free again
	return l.Addr().String()
}
