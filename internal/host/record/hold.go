package record

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/host/lock"
)

const holdLock = "daemon.lock"

// ErrHeld means that another daemon keeps its records in the folder.
var ErrHeld = errors.New("another daemon keeps its records there")

// Hold makes this process the one daemon that keeps its records in a folder,
// which is made if it is not there, until what it returns is closed or the
// process ends, however it ends. The error is ErrHeld, and names the process,
// where there is one already. Others may go on adding to the journal. Records
// that users other than the owner could read are restricted to the owner.
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
			"opening the lock of the records: %w; run as root, make room, or choose another folder with --records", err)
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
