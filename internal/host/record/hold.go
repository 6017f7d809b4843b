package record

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/host/lock"
)

const holdLock = "daemon.lock"

// ErrHeld means that another daemon uses the folder for its records.
var ErrHeld = errors.New("another daemon uses this folder")

// Hold makes this process the only daemon that uses a folder for its records,
// until its result is closed or the process ends in any way. It creates the
// folder if it is missing. If another daemon uses it, the error is ErrHeld and
// names that process. Other processes may still append to the journal. Hold
// restricts records to their owner if other users could read them.
func Hold(folder string) (io.Closer, error) {
	if err := lock.Folder(folder); err != nil {
		return nil, fmt.Errorf(
			"creating the folder of records: %w; run as root, or choose another folder with --records", err)
	}
	held, err := lock.Try(filepath.Join(folder, holdLock))
	switch {
	case errors.Is(err, lock.ErrTaken):
		return nil, fmt.Errorf("records in %s: %w: %w; stop it first, or choose another folder with --records", folder,
			ErrHeld, err)
	case err != nil:
		return nil, fmt.Errorf(
			"opening the lock of the records: %w; "+
				"run as root, free disk space, or choose another folder with --records",
			err)
	}
	paths := []string{filepath.Join(folder, alarmsFile), filepath.Join(folder, historyLock)}
	for _, name := range historyFiles() {
		paths = append(paths, filepath.Join(folder, name))
	}
	if err := lock.Files(paths...); err != nil {
		return nil, errors.Join(fmt.Errorf("restricting the records to their owner: %w", err), held.Close())
	}
	return held, nil
}
