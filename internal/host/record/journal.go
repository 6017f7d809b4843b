package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// Journal is the record of what was done: FOLDER/history.jsonl, an entry a
// line, and two older files of it. Several processes may append.
type Journal struct {
	Folder string
	// Most is when a file is put aside and a new one begun; 0: 16 MiB.
	Most topology.Bytes
}

const (
	journalName  = "history.jsonl"
	journalsKept = 2
	journalMost  = 16 * topology.MiB
	// longestEntry bounds a line that is read: a move of a few wide guests fits.
	longestEntry = 4 << 20
)

// Append writes an entry and has it on disk before it returns. A line that a
// crash cut short is ended first, so that it spoils no other.
func (j Journal) Append(e journal.Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("journal: %s of %s: %w", e.Kind, e.ID, err)
	}
	if err := os.MkdirAll(j.Folder, 0o755); err != nil {
		return fmt.Errorf("journal: %w; run as root, or choose another folder with --records", err)
	}
	return j.locked(func() error { return j.append(append(line, '\n')) })
}

func (j Journal) append(line []byte) error {
	if err := j.rotate(); err != nil {
		return err
	}
	file, err := os.OpenFile(j.path(0), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer file.Close()
	if torn, err := endsTorn(file); err != nil {
		return fmt.Errorf("journal %s: %w", file.Name(), err)
	} else if torn {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := file.Write(line); err != nil {
		return fmt.Errorf("journal %s: %w", file.Name(), err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("journal %s: %w", file.Name(), err)
	}
	return nil
}

// endsTorn reports whether the last line has no end.
func endsTorn(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	_, err = file.ReadAt(last[:], info.Size()-1)
	return last[0] != '\n', err
}

// rotate puts a file aside that has become too long. Moves without an end are
// carried over: a start must find them however old they are.
func (j Journal) rotate() error {
	most := j.Most
	if most == 0 {
		most = journalMost
	}
	info, err := os.Stat(j.path(0))
	if errors.Is(err, fs.ErrNotExist) || err == nil && topology.Bytes(info.Size()) < most {
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	entries, err := j.read(0, nil)
	if err != nil {
		return err
	}
	var carried bytes.Buffer
	for _, e := range journal.CutShort(entries) {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		carried.Write(append(line, '\n'))
	}
	fresh := j.path(0) + ".new"
	if err := writeSynced(fresh, carried.Bytes()); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	for age := journalsKept; age > 0; age-- {
		if err := os.Rename(j.path(age-1), j.path(age)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("journal: %w", err)
		}
	}
	if err := os.Rename(fresh, j.path(0)); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func writeSynced(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// Since returns the entries from a time on, oldest first, and those of moves
// without an end whatever their age. Without a journal there are none. Lines
// that are torn or not understood are left out: half an entry tells nothing.
func (j Journal) Since(from time.Time) ([]journal.Entry, error) {
	var all []journal.Entry
	err := j.locked(func() (err error) {
		for age := journalsKept; age >= 0; age-- {
			if all, err = j.read(age, all); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	open := map[string]bool{}
	for _, e := range journal.CutShort(all) {
		open[e.ID] = true
	}
	var kept []journal.Entry
	began := map[string]bool{} // one that was carried over stands in two files
	for _, e := range all {
		if e.Kind == journal.MoveBegan {
			if began[e.ID] {
				continue
			}
			began[e.ID] = true
		}
		if !e.At.Before(from) || e.ID != "" && open[e.ID] {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

// read adds the entries of a file, 0 being the newest one.
func (j Journal) read(age int, all []journal.Entry) ([]journal.Entry, error) {
	file, err := os.Open(j.path(age))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("journal: %w", err)
	}
	defer file.Close()
	all, err = readEntries(file, all)
	if err != nil {
		return all, fmt.Errorf("journal %s: %w", file.Name(), err)
	}
	return all, nil
}

func readEntries(r io.Reader, all []journal.Entry) ([]journal.Entry, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(lines)
		var e journal.Entry
		if len(line) > 0 && json.Unmarshal(line, &e) == nil && e.Kind != "" {
			all = append(all, e)
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// readLine reads a line, and skips over one that is too long to be ours.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) <= longestEntry {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// locked keeps other processes from appending meanwhile.
func (j Journal) locked(do func() error) error {
	lock, err := os.OpenFile(filepath.Join(j.Folder, journalName+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		if _, missing := os.Stat(j.Folder); missing != nil {
			return fmt.Errorf("journal: %w", missing)
		}
		return do() // to read, no lock is needed
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer lock.Close() // releases the lock
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if err == nil {
			return do()
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("journal: locking %s: %w", lock.Name(), err)
		}
	}
}

func (j Journal) path(age int) string {
	name := filepath.Join(j.Folder, journalName)
	if age > 0 {
		name += fmt.Sprintf(".%d", age)
	}
	return name
}
