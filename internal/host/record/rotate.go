package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/renameio/v2"

	"github.com/numavisor/numavisor/internal/journal"
)

// old is the number of rotated files.
const old = 2

// historyFiles lists the files of a journal, the oldest first.
func historyFiles() []string {
	var names []string
	for i := old; i > 0; i-- {
		names = append(names, fmt.Sprintf("%s.%d", historyFile, i))
	}
	return append(names, historyFile)
}

// rotate renames the file once it is large. The next one begins with the
// entries that are still in effect (journal.Lasting), so that these are never
// lost with an old file. A crash between any two of its steps loses nothing:
// until the oldest file is removed, all entries are in some file.
func (j Journal) rotate() error {
	most := j.Most
	if most == 0 {
		most = defaultMost
	}
	info, err := os.Stat(j.path(historyFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < most {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking the size of the journal: %w", err)
	}
	lines, err := j.lasting()
	if err != nil {
		return err
	}
	next, err := renameio.NewPendingFile(j.path(historyFile), renameio.WithTempDir(j.Folder),
		renameio.WithStaticPermissions(0o600))
	if err != nil {
		return fmt.Errorf("starting a new file of the journal: %w", err)
	}
	defer func() { _ = next.Cleanup() }() // does nothing once the file has its name
	if _, err := next.Write(lines); err != nil {
		return fmt.Errorf("starting a new file of the journal: %w", err)
	}
	names := historyFiles()
	for i := 1; i < len(names); i++ {
		if err := os.Rename(j.path(names[i]), j.path(names[i-1])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotating a file of the journal: %w", err)
		}
	}
	if err := next.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("starting a new file of the journal: %w", err)
	}
	return j.syncFolder()
}

// lasting returns the lines of the entries that are still in effect.
func (j Journal) lasting() ([]byte, error) {
	h, err := j.read()
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	for _, e := range journal.Lasting(h.Entries) {
		line, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		lines.Write(append(line, '\n'))
	}
	return lines.Bytes(), nil
}
