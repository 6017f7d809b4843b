package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/host/lock"
)

const (
	alarmsFile    = "alarms.json"
	alarmsVersion = 1
	// Limits for cleared alarms: a month, and a number. An alarm takes some
	// hundred bytes, and the file is always written as a whole.
	mostCleared = 1000
	longCleared = 30 * 24 * time.Hour
	// maxAlarmsBytes limits how much is read: ten times the largest file within
	// the limits above.
	maxAlarmsBytes = 64 << 20
)

// AlarmsEvery is the longest time between two saves of a running daemon, even
// without a change: by the time of the last save, readers distinguish a running
// daemon from one that is down.
const AlarmsEvery = 30 * time.Second

// Alarms are the alarms of a host: the state of the judgement, with the active
// alarms, and the cleared ones.
type Alarms struct {
	// Written is the time of the last save.
	Written time.Time   `json:"written"`
	State   alarm.State `json:"state"`
	// Cleared are the cleared alarms, the latest to clear last.
	Cleared []alarm.Alarm `json:"cleared,omitempty"`
}

// alarmsDocument is the form of Alarms in the file.
type alarmsDocument struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	Alarms
}

const alarmsKind = "numavisor alarms"

// Retain adds the alarms that a judgement cleared, and drops those that were
// cleared too long before now.
func (a *Alarms) Retain(changes []alarm.Alarm, now time.Time) {
	for _, c := range changes {
		if !c.Active() {
			a.Cleared = append(a.Cleared, c)
		}
	}
	a.Cleared = slices.DeleteFunc(a.Cleared, func(c alarm.Alarm) bool { return now.Sub(c.Cleared) > longCleared })
	a.Cleared = a.Cleared[max(len(a.Cleared)-mostCleared, 0):]
}

// UnreadableError says that the file of alarms is damaged, or is another kind
// of file.
type UnreadableError struct {
	Path string
	// SetAside is the file's new name; empty: the file was left alone.
	SetAside string
	Err      error
}

func (e *UnreadableError) Error() string {
	if e.SetAside == "" {
		return fmt.Sprintf("reading alarms from %s: %v; the daemon renames the file at its next start", e.Path, e.Err)
	}
	return fmt.Sprintf("reading alarms from %s: %v; the file is now %s, and the daemon starts without alarms",
		e.Path, e.Err, e.SetAside)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// ReadAlarms reads the alarms in a folder and changes nothing. The error is
// fs.ErrNotExist if no daemon has saved any, and an UnreadableError if the file
// is not a file of alarms.
func ReadAlarms(folder string) (Alarms, error) {
	path := filepath.Join(folder, alarmsFile)
	data, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Alarms{}, fmt.Errorf("reading alarms: %w; run as root, or choose another folder", err)
	case err != nil:
		return Alarms{}, fmt.Errorf("reading alarms: %w", err)
	}
	a, err := parseAlarms(data)
	if err != nil {
		return Alarms{}, &UnreadableError{Path: path, Err: err}
	}
	return a, nil
}

// LoadAlarms reads the alarms that a daemon starts with: none if there is no
// file. It renames an unreadable file; the error is then an UnreadableError
// that says so, and the daemon may go on.
func LoadAlarms(folder string) (Alarms, error) {
	a, err := ReadAlarms(folder)
	var bad *UnreadableError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Alarms{}, nil
	case errors.As(err, &bad):
		aside, moved := setAside(bad.Path)
		if moved != nil {
			return Alarms{}, fmt.Errorf("%w; renaming it failed: %w", err, moved)
		}
		bad.SetAside = aside
	}
	return a, err
}

// SaveAlarms writes the alarms to a folder, which it creates if it is missing.
// If it is interrupted, the file contains either the new or the previous
// alarms.
func SaveAlarms(folder string, a Alarms) error {
	data, err := json.Marshal(alarmsDocument{alarmsKind, alarmsVersion, a})
	if err == nil {
		err = replaceWhole(filepath.Join(folder, alarmsFile), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf(
			"saving alarms: %w; make sure that %s is writable and has free space, or choose another folder",
			err, folder)
	}
	return nil
}

func parseAlarms(data []byte) (Alarms, error) {
	var d alarmsDocument
	if err := json.Unmarshal(data, &d); err != nil {
		return Alarms{}, fmt.Errorf("%d bytes that are not a complete JSON document: %w", len(data), err)
	}
	if d.Kind != alarmsKind {
		return Alarms{}, fmt.Errorf("its kind is %q instead of %q", d.Kind, alarmsKind)
	}
	if d.Version != alarmsVersion {
		return Alarms{}, fmt.Errorf("it has version %d; this program supports version %d", d.Version, alarmsVersion)
	}
	return d.Alarms, nil
}

func readBounded(path string) ([]byte, error) {
	file, _, err := lock.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxAlarmsBytes))
}

// setAside gives a file an unused name, and returns it.
func setAside(path string) (string, error) {
	for i := 1; ; i++ {
		aside := fmt.Sprintf("%s.unreadable-%d", path, i)
		// A link, unlike a rename, never replaces an existing file.
		err := os.Link(path, aside)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return aside, os.Remove(path)
	}
}

// replaceWhole writes a file such that its name always has complete content, on
// the disk as well. Only its owner's programs may read it.
func replaceWhole(path string, data []byte) error {
	folder := filepath.Dir(path)
	if err := lock.Folder(folder); err != nil {
		return err
	}
	// The temporary file is in the same folder as the final one: a rename does
	// not cross file systems.
	if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(folder),
		renameio.WithStaticPermissions(0o600)); err != nil {
		return err
	}
	return syncFolder(folder)
}

// syncFolder makes the names of files in a folder survive a crash of the host.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
