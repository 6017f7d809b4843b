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
	// Alarms that are over are kept for a month, and so many at most: some
	// hundred bytes each, the file is written whole.
	mostCleared = 1000
	longCleared = 30 * 24 * time.Hour
	// maxAlarmsBytes bounds what is read: ten times what the above can come to.
	maxAlarmsBytes = 64 << 20
)

// AlarmsEvery is how often a daemon saves its alarms at least, changed or not:
// by the time of the last save, readers tell a daemon that watches from one
// that is down.
const AlarmsEvery = 30 * time.Second

// Alarms are those of a host: the state of judging, which has those that last,
// and those that are over.
type Alarms struct {
	// Written is when a daemon last saved them.
	Written time.Time   `json:"written"`
	State   alarm.State `json:"state"`
	// Cleared are those that are over, the latest to end last.
	Cleared []alarm.Alarm `json:"cleared,omitempty"`
}

// alarmsDocument is Alarms as they are in the file.
type alarmsDocument struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	Alarms
}

const alarmsKind = "numavisor alarms"

// Keep takes over from the changes of a judgement what is over now, and drops
// what was cleared too long before now.
func (a *Alarms) Keep(changes []alarm.Alarm, now time.Time) {
	for _, c := range changes {
		if !c.Active() {
			a.Cleared = append(a.Cleared, c)
		}
	}
	a.Cleared = slices.DeleteFunc(a.Cleared, func(c alarm.Alarm) bool { return now.Sub(c.Cleared) > longCleared })
	a.Cleared = a.Cleared[max(len(a.Cleared)-mostCleared, 0):]
}

// UnreadableError says that the file of alarms is not one, or is damaged.
type UnreadableError struct {
	Path string
	// SetAside is the name that it has now; empty: it was left alone.
	SetAside string
	Err      error
}

func (e *UnreadableError) Error() string {
	if e.SetAside == "" {
		return fmt.Sprintf("reading alarms from %s: %v; the daemon sets it aside at its next start", e.Path, e.Err)
	}
	return fmt.Sprintf("reading alarms from %s: %v; it is kept as %s, and alarms begin anew", e.Path, e.Err, e.SetAside)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// ReadAlarms reads the alarms in a folder and changes nothing. The error is
// fs.ErrNotExist where no daemon has saved any, and an UnreadableError where
// the file is no such file.
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

// LoadAlarms reads the alarms that a daemon starts from: none where there is no
// file. One that is not readable is set aside under another name; then the
// error is an UnreadableError that says so, and the daemon may go on.
func LoadAlarms(folder string) (Alarms, error) {
	a, err := ReadAlarms(folder)
	var bad *UnreadableError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Alarms{}, nil
	case errors.As(err, &bad):
		aside, moved := setAside(bad.Path)
		if moved != nil {
			return Alarms{}, fmt.Errorf("%w; setting it aside failed: %w", err, moved)
		}
		bad.SetAside = aside
	}
	return a, err
}

// SaveAlarms writes the alarms to a folder, which is made if it is not there.
// Whenever it is interrupted, the file has either these or those before.
func SaveAlarms(folder string, a Alarms) error {
	data, err := json.Marshal(alarmsDocument{alarmsKind, alarmsVersion, a})
	if err == nil {
		err = replaceWhole(filepath.Join(folder, alarmsFile), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("saving alarms: %w; make sure that %s can be written and has room, or choose another folder",
			err, folder)
	}
	return nil
}

func parseAlarms(data []byte) (Alarms, error) {
	var d alarmsDocument
	if err := json.Unmarshal(data, &d); err != nil {
		return Alarms{}, fmt.Errorf("%d bytes that are no whole JSON document: %w", len(data), err)
	}
	if d.Kind != alarmsKind {
		return Alarms{}, fmt.Errorf("its kind is %q, not %q", d.Kind, alarmsKind)
	}
	if d.Version != alarmsVersion {
		return Alarms{}, fmt.Errorf("it has version %d, this program knows version %d", d.Version, alarmsVersion)
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

// setAside gives a file a name that nothing has, and returns it.
func setAside(path string) (string, error) {
	for i := 1; ; i++ {
		aside := fmt.Sprintf("%s.unreadable-%d", path, i)
		// A link, unlike a rename, never replaces what is there.
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

// replaceWhole writes a file such that its name always has a whole one, on the
// disk as well. Readers are its owner's programs only.
func replaceWhole(path string, data []byte) error {
	folder := filepath.Dir(path)
	if err := lock.Folder(folder); err != nil {
		return err
	}
	// The temporary file is beside the final one: a rename does not cross file systems.
	if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(folder),
		renameio.WithStaticPermissions(0o600)); err != nil {
		return err
	}
	return syncFolder(folder)
}

// syncFolder has the names of files in a folder outlast a crash of the host.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
