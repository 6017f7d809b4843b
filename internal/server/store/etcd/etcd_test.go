package etcd_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/server/store/storetest"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that waits for it. etcd
// leaves the connections between members to their timeout of some seconds.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // the tests wait most of the time; 16 is a default that -parallel overrides
	// Each write waits for the disk: use memory if the machine has enough of it there. What a
	// process has written survives its kill -9 there too.
	var memory unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &memory); err == nil && memory.Bavail*uint64(memory.Bsize) > 2<<30 {
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"))
}

// open opens a store that the test closes.
func open(t *testing.T, c etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store {
		t.Helper()
		return open(t, etcd.Config{Folder: t.TempDir()})
	})
}
