package claim_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A claim file that is not a claim is named in the error, and does not stop the
// reader: a FIFO would otherwise wait for its writer, and a huge file would
// fill the memory.
func TestLedger_FileThatIsNoClaim(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"FIFO":   {func(path string) error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
		"folder": {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"huge": {func(path string) error {
			file, err := os.Create(path)
			if err != nil {
				return err
			}
			defer file.Close()
			return file.Truncate(1 << 40)
		}, "more than any claim"},
		"empty": {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "remove it if no VM"},
		"two documents": {func(path string) error { return os.WriteFile(path, []byte("{}{}"), 0o600) },
			"remove it if no VM"},
		"claim of no guest": {func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) },
			`names VM ""`},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger(t)
			put(t, l, "alive", 1)
			path := filepath.Join(l.Folder, "claims", "bad.json")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			claims, err := l.Claims()
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %s and %q", err, path, c.want)
			}
			if len(claims) != 1 || claims[0].Name != "alive" {
				t.Errorf("claims are %v, want that of alive", claims)
			}
		})
	}
}
