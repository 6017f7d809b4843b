package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"time"

	"github.com/numavisor/numavisor/internal/decide/reconcile"
	"github.com/numavisor/numavisor/internal/host/lock"
)

const stateFile = "state.json"

// loadState reads what the agent remembers of its VMs; without a file it is empty.
func loadState(folder string) (reconcile.State, error) {
	var s reconcile.State
	file, size, err := lock.OpenRegular(filepath.Join(folder, stateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("reading the agent's state: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := json.NewDecoder(io.LimitReader(file, size)).Decode(&s); err != nil {
		return reconcile.State{}, fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	return s, nil
}

const sequenceFile = "sequence.json"

// sequence is the number before a run's first status.
type sequence struct {
	Began int64 `json:"began"`
}

// sequenceStep is the least distance between the numbers of two runs: no run sends as many statuses.
const sequenceStep = int64(time.Hour)

// beginSequence returns the number before the first status of this run: the time in nanoseconds since 1970, or
// later than the run before it, if the clock went back. A host without the file has only its clock.
func beginSequence(folder string, now time.Time) (int64, error) {
	var last sequence
	file, size, err := lock.OpenRegular(filepath.Join(folder, sequenceFile))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(file, size)).Decode(&last)
		_ = file.Close() // it was only read
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	this := sequence{Began: max(now.UnixNano(), last.Began+sequenceStep)}
	if err = errors.Join(err, storeFile(folder, sequenceFile, this)); err != nil {
		err = fmt.Errorf("numbering the reports of VMs by %s: %w", filepath.Join(folder, sequenceFile), err)
	}
	return this.Began, err
}

// store stores the state if it has changed.
func (l *loop) store() error {
	if reflect.DeepEqual(l.state.Known, l.stored.Known) {
		return nil
	}
	if err := storeFile(l.Folder, stateFile, l.state); err != nil {
		return fmt.Errorf("storing the agent's state: %w", err)
	}
	l.stored = l.state.Clone()
	return nil
}
