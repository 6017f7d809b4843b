package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const holdLock = "daemon.lock"

// ErrHeld means that another daemon keeps its records in the folder.
var ErrHeld = errors.New("another daemon keeps its records there")

// Hold makes this process the one daemon that keeps its records in a folder,
// which is made if it is not there, until what it returns is closed or the
// process ends, however it ends. The error is ErrHeld, and names the process,
// where there is one already. Others may go on adding to the journal.
func Hold(folder string) (io.Closer, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("creating the folder of records: %w; run as root, or choose another folder with --records", err)
	}
	path := filepath.Join(folder, holdLock)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the records: %w; run as root, make room, or choose another folder with --records", err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer file.Close()
		return nil, fmt.Errorf("records in %s: %w: %s holds %s; stop it first, or choose another folder with --records", folder, ErrHeld, holder(file), path)
	case err != nil:
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
	}
	// The lock is what counts: who holds it is told as far as the disk has room for that.
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	return file, nil
}

// holder names the process that a lock's file tells of.
func holder(file *os.File) string {
	pid, err := io.ReadAll(io.LimitReader(file, 20))
	if err != nil || len(pid) == 0 {
		return "a process"
	}
	return "process " + strings.TrimSpace(string(pid))
}
