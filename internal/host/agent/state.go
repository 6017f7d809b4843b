package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"

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
