package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/host/lock"
	"github.com/numavisor/numavisor/internal/journal"
)

// Journal is the journal of a host in a folder: FOLDER/history.jsonl, an entry
// a line, and two older files. Several processes may write it at once.
type Journal struct {
	Folder string
	// Most is the size from which a file is rotated; 0 is 4 MiB.
	Most int64
}

const (
	historyFile = "history.jsonl"
	historyLock = "history.lock"
	defaultMost = 4 << 20
)

// Filter selects entries. The zero Filter selects all.
type Filter struct {
	Guest string    // of this guest only
	Since time.Time // not older
	Last  int       // only the newest; 0: all
}

// History is the result of a reading.
type History struct {
	Entries []journal.Entry `json:"entries"` // oldest first
	// Unreadable names lines that are not entries: "history.jsonl, line 7:
	// ...". It omits an incomplete line at the end of a file, which a crash leaves.
	Unreadable []string `json:"unreadable,omitempty"`
}

// Append adds an entry by one write and returns once it is on the disk. It
// first removes an incomplete line at the end (kill -9, full disk): the writer of
// that line never got a success.
func (j Journal) Append(e journal.Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("an entry for %s: %w", j.path(historyFile), err)
	}
	return j.changing(func() error {
		if err := j.rotate(); err != nil {
			return err
		}
		return j.add(append(line, '\n'))
	})
}

// changing runs a function that changes files while no other process reads or
// changes them.
func (j Journal) changing(change func() error) error {
	if err := lock.Folder(j.Folder); err != nil {
		return fmt.Errorf("creating the journal's folder: %w; run as root, or choose another folder", err)
	}
	return locked(j.path(historyLock), lock.Exclusive, change)
}

// reading runs a function that reads files while no other process changes them:
// otherwise a reader could miss a file that is rotated meanwhile. A folder into
// which Numavisor has never written (such as a copy) has no lock.
func (j Journal) reading(read func() error) error {
	err := locked(j.path(historyLock), lock.Shared, read)
	if errors.Is(err, errNoLock) {
		return read()
	}
	return err
}

// lockWait limits the wait for the journal's lock: its holder adds an entry or
// reads a few MiB, and the daemon's loop waits meanwhile.
const lockWait = 2 * time.Second

// errNoLock means that the lock's file is missing.
var errNoLock = errors.New("the journal has no lock")

// locked runs do while this process holds the lock of the journal.
func locked(path string, take func(context.Context, string) (io.Closer, error), do func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	held, err := take(ctx, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNoLock
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("opening the journal's lock: %w; run as root, or choose another folder", err)
	case err != nil:
		return fmt.Errorf("waiting for the journal: %w", err)
	}
	defer func() { _ = held.Close() }() // also if do panics
	return do()
}

// add appends complete lines.
func (j Journal) add(lines []byte) error {
	path := j.path(historyFile)
	_, missing := os.Stat(path)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the journal: %w", err)
	}
	defer file.Close()
	if err := extend(file, lines); err != nil {
		return fmt.Errorf("writing the journal %s: %w", path, err)
	}
	if missing != nil {
		return j.syncFolder()
	}
	return nil
}

// lineFile are the methods of a file of lines.
type lineFile interface {
	io.ReaderAt
	io.WriterAt
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
	Sync() error
}

// extend writes complete lines after the last complete one. If it could not
// write all of them, it removes the part that it wrote. If the end of the
// complete lines is unknown, it leaves the file as it is.
func extend(file lineFile, more []byte) error {
	end, err := whole(file)
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(more, end); err == nil {
		err = file.Sync()
	}
	if err != nil {
		return errors.Join(err, file.Truncate(end))
	}
	return nil
}

// whole cuts off everything after the last complete line and returns the end of
// that line.
func whole(file lineFile) (end int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	const block = 64 << 10
	buffer := make([]byte, block)
	for at := info.Size(); at > 0; at -= min(at, block) {
		begin := max(at-block, 0)
		n, err := file.ReadAt(buffer[:at-begin], begin)
		if err != nil && n < int(at-begin) {
			return 0, err
		}
		if i := bytes.LastIndexByte(buffer[:n], '\n'); i >= 0 {
			end = begin + int64(i) + 1
			break
		}
	}
	if end == info.Size() {
		return end, nil
	}
	return end, file.Truncate(end)
}

func (j Journal) syncFolder() error {
	if err := syncFolder(j.Folder); err != nil {
		return fmt.Errorf("the journal's folder: %w", err)
	}
	return nil
}

// Read returns the entries of the journal. A missing journal is no error.
func (j Journal) Read(f Filter) (History, error) {
	var h History
	err := j.reading(func() (err error) {
		h, err = j.read()
		return err
	})
	h.Entries = slices.DeleteFunc(h.Entries, func(e journal.Entry) bool { return !f.picks(e) })
	if f.Last > 0 && len(h.Entries) > f.Last {
		h.Entries = h.Entries[len(h.Entries)-f.Last:]
	}
	return h, err
}

// read reads all files; the caller holds the journal's lock.
func (j Journal) read() (History, error) {
	h := History{Entries: []journal.Entry{}}
	seen := map[string]bool{}
	for _, name := range historyFiles() {
		data, left, err := newest(j.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return h, fmt.Errorf("reading the journal: %w", err)
		}
		if left > 0 {
			h.Unreadable = append(h.Unreadable,
				fmt.Sprintf("%s: its first %d bytes are skipped; only the last %d are read", name, left,
					maxHistoryBytes))
		}
		h.parse(name, data, seen)
	}
	return h, nil
}

// maxHistoryBytes limits how much of a file is read: a file is rotated at 4
// MiB.
const maxHistoryBytes = 64 << 20

// newest reads the end of a file, from the beginning of a line on, and returns
// how many bytes before it were left out.
func newest(path string) (data []byte, left int64, err error) {
	file, size, err := lock.OpenRegular(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	left = max(size-maxHistoryBytes, 0)
	data, err = io.ReadAll(io.NewSectionReader(file, left, maxHistoryBytes))
	if left > 0 {
		_, data, _ = bytes.Cut(data, []byte{'\n'})
	}
	return data, left, err
}

// Entries returns all entries, oldest first.
func (j Journal) Entries() ([]journal.Entry, error) {
	h, err := j.Read(Filter{})
	return h.Entries, err
}

func (f Filter) picks(e journal.Entry) bool {
	return (f.Guest == "" || slices.Contains(e.Guests, f.Guest)) && !e.At.Before(f.Since)
}

// parse adds the entries of a file. Entries that were carried over by a
// rotation are in both files; parse adds them once.
func (h *History) parse(name string, data []byte, seen map[string]bool) {
	for n := 1; ; n++ {
		line, rest, ended := bytes.Cut(data, []byte{'\n'})
		if !ended {
			return // an incomplete line, or the end of the file
		}
		data = rest
		var e journal.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			h.Unreadable = append(h.Unreadable, fmt.Sprintf("%s, line %d: %v", name, n, err))
			continue
		}
		if e.ID != "" || e.Kind == journal.Paused {
			if seen[string(line)] {
				continue
			}
			seen[string(line)] = true
		}
		h.Entries = append(h.Entries, e)
	}
}

func (j Journal) path(name string) string { return filepath.Join(j.Folder, name) }
