// Package lock takes locks on files (flock(2)) that other users of the host
// cannot take. An flock needs only a descriptor for reading, so any user who
// can read a lock file can take its lock: files belong to their owner only, and
// so do the folders that Numavisor makes.
package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// ErrTaken means that another process holds the lock.
var ErrTaken = errors.New("another process holds the lock")

// TakenError is ErrTaken with the lock's file and its holder, as far as known.
type TakenError struct {
	Path   string
	Holder string        // "process 4711 (numavisor)"; "another process" where the kernel does not say
	Waited time.Duration // 0: the caller did not wait
}

func (e *TakenError) Error() string {
	if e.Waited == 0 {
		return fmt.Sprintf("%s holds the lock %s", e.Holder, e.Path)
	}
	return fmt.Sprintf("%s still holds the lock %s after %v; wait for that process, or end it", e.Holder, e.Path,
		e.Waited.Round(time.Millisecond))
}

// Unwrap makes the error ErrTaken.
func (e *TakenError) Unwrap() error { return ErrTaken }

// retry is the time between two attempts: flock(2) has no deadline. It is short
// so that a waiter also gets a lock that others release and take again at once.
const retry = time.Millisecond

// Exclusive takes the lock of a file, which it creates if it is missing. It
// waits until ctx ends; the error is then a TakenError and ctx.Err(). Close the
// result to release the lock.
func Exclusive(ctx context.Context, path string) (io.Closer, error) {
	if err := restrict(path); err != nil {
		return nil, err
	}
	f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW))
	return wait(ctx, f, f.TryLockContext)
}

// Shared takes the lock together with others that share it, as Exclusive does.
// The error is fs.ErrNotExist where the file is missing.
func Shared(ctx context.Context, path string) (io.Closer, error) {
	f := flock.New(path, flock.SetFlag(os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK))
	return wait(ctx, f, f.TryRLockContext)
}

// Try takes the lock of a file, as Exclusive does, but does not wait.
func Try(path string) (io.Closer, error) {
	if err := restrict(path); err != nil {
		return nil, err
	}
	f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW))
	switch got, err := f.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("locking %s: %w", path, err)
	case !got:
		return nil, &TakenError{Path: path, Holder: holder(path)}
	}
	return f, nil
}

func wait(
	ctx context.Context, f *flock.Flock, try func(context.Context, time.Duration) (bool, error),
) (io.Closer, error) {
	began := time.Now()
	_, err := try(ctx, retry)
	switch {
	case err == nil:
		return f, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, errors.Join(&TakenError{Path: f.Path(), Holder: holder(f.Path()), Waited: time.Since(began)}, err)
	}
	return nil, fmt.Errorf("locking %s: %w", f.Path(), err)
}

// restrict removes the permissions of others from a lock file that an older
// version created readable for all. It refuses a file of another user: that
// user could hold the lock forever.
func restrict(path string) error {
	err := ownerOnly(path, unix.S_IFREG)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Folder creates a folder, and those above it, for its owner only. It restricts
// an existing folder called "numavisor" to its owner: only Numavisor uses it.
// It leaves the permissions of any other existing folder alone, which may serve
// others as well.
func Folder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if filepath.Base(path) != "numavisor" {
		return nil
	}
	return ownerOnly(path, unix.S_IFDIR)
}

// Files restricts files to their owner. Missing ones are no error.
func Files(paths ...string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, restrict(p))
	}
	return errors.Join(errs...)
}

// ownerOnly removes the permissions of group and others from a file of this
// user. It follows no symbolic link: the link's target does not belong to
// Numavisor.
func ownerOnly(path string, kind uint32) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%s is a symbolic link; remove it", path)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var found unix.Stat_t
	if err := unix.Fstat(fd, &found); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case found.Mode&unix.S_IFMT != kind:
		return fmt.Errorf("%s is of an unexpected kind (mode %#o); remove it", path, found.Mode)
	case int(found.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, but user %d runs this program; remove it, or choose another folder",
			path, found.Uid, os.Geteuid())
	case found.Mode&0o077 == 0:
		return nil
	}
	if err := unix.Fchmod(fd, found.Mode&0o700); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

// holder names the process that holds the flock of a file, from /proc/locks:
// "1: FLOCK  ADVISORY  WRITE 4711 08:02:131090 0 EOF".
func holder(path string) string {
	const unknown = "another process"
	var file unix.Stat_t
	if unix.Lstat(path, &file) != nil {
		return unknown
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return unknown
	}
	defer locks.Close()
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != inode {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return named(pid)
		}
	}
	return unknown
}

// named returns a process with its command's name, which any user may have
// chosen.
func named(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%q)", pid, strings.TrimSuffix(string(comm), "\n"))
}
