package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// Results are all runs of all layouts.
type Results struct {
	// Version is that of the format: ResultsVersion.
	Version int      `json:"version"`
	Window  float64  `json:"window_seconds"`
	Layouts []Layout `json:"layouts"` // that have runs, or were to have
	Runs    []Run    `json:"runs"`
}

// ResultsVersion is the version of the file of results. Version 1 had one layout.
const ResultsVersion = 2

// Read returns the results in a file; none if there is no file.
func Read(path string) (Results, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Results{Version: ResultsVersion}, nil
	}
	if err != nil {
		return Results{}, err
	}
	var versioned struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &versioned); err != nil {
		return Results{}, fmt.Errorf("results in %s: %w", path, err)
	}
	if versioned.Version != ResultsVersion {
		return Results{}, fmt.Errorf("results in %s have version %d, this program reads and writes version %d; "+
			"give another file", path, max(versioned.Version, 1), ResultsVersion)
	}
	var r Results
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return Results{}, fmt.Errorf("results in %s: %w", path, err)
	}
	return r, nil
}

// Write replaces a file of results in one step.
func (r Results) Write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Add adds layouts that are to be measured. It refuses those that the results
// have under the same name with another definition, and windows of another
// length: runs would not be comparable.
func (r *Results) Add(window float64, layouts []Layout) error {
	if len(r.Layouts) > 0 && r.Window != window {
		return fmt.Errorf("the runs have windows of %v s, not %v s", r.Window, window)
	}
	r.Window = window
	for _, l := range layouts {
		old, known := r.layout(l.Name)
		if known && !old.sameAs(l) {
			return fmt.Errorf("layout %s is another there: %v; here: %v", l.Name, old, l)
		}
		if !known {
			r.Layouts = append(r.Layouts, l)
		}
	}
	return nil
}

func (r Results) layout(name string) (Layout, bool) {
	i := slices.IndexFunc(r.Layouts, func(l Layout) bool { return l.Name == name })
	if i < 0 {
		return Layout{}, false
	}
	return r.Layouts[i], true
}

// valid are a manager's runs of a layout that did not fail.
func (r Results) valid(layout, manager string) (valid []Run) {
	for _, run := range r.Runs {
		if run.Layout == layout && run.Manager == manager && run.Failed == "" {
			valid = append(valid, run)
		}
	}
	return valid
}

// Builds are the versions of Numavisor that made the runs, each once.
func (r Results) Builds() []string {
	var all []string
	for _, run := range r.Runs {
		if run.Manager == Numavisor && !slices.Contains(all, run.Build) {
			all = append(all, run.Build)
		}
	}
	return all
}
