package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/text"
)

// Root is the folder that contains proc and sys: Live, or a captured tree.
// System calls (move_pages, mbind, sched_setaffinity, ...) act on the live host
// only and are plain functions.
type Root string

// Live is the running host.
const Live Root = "/"

// path returns the path of a kernel file below the root.
func (r Root) path(elements ...string) string {
	return filepath.Join(append([]string{string(r)}, elements...)...)
}

// proc returns the path of a file of one process or thread.
func (r Root) proc(id int, elements ...string) string {
	return r.path(append([]string{"proc", strconv.Itoa(id)}, elements...)...)
}

// word reads a kernel file of one value and trims it.
func (r Root) word(elements ...string) (string, error) {
	data, err := readFile(r.path(elements...))
	return string(bytes.TrimSpace(data)), err
}

// count reads a kernel file of one number.
func (r Root) count(elements ...string) (uint64, error) {
	text, err := r.word(elements...)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %q is not a number", r.path(elements...), abbreviate(text))
	}
	return n, nil
}

// set writes a value to a kernel file in one write.
func (r Root) set(value string, elements ...string) error {
	return writeKernelFile(r.path(elements...), value)
}

// writeKernelFile writes without creating: a missing kernel file is a missing
// feature, not a file to create.
func writeKernelFile(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	if err2 := file.Close(); err == nil {
		err = err2
	}
	return err
}

// Gone reports whether a read failed because the process or thread has ended.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// ErrUnread means that a process exists, but its files below /proc could not be
// read: a mount may hide them, or the kernel restricts access (hidepid).
var ErrUnread = errors.New("the process exists, but its /proc files could not be read")

// unreadOrGone classifies an error from reading /proc/PID of the running host.
// Only the kernel knows whether the process has ended: the error then wraps
// unix.ESRCH; else it wraps ErrUnread, and Gone does not report it.
func unreadOrGone(pid int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return fmt.Errorf("%w (%w)", err, unix.ESRCH)
	}
	return fmt.Errorf("%w: %v", ErrUnread, err) //nolint:errorlint // it must not count as fs.ErrNotExist
}

// abbreviate shortens foreign text in errors.
func abbreviate(s string) string { return text.Shorten(s, 80) }
