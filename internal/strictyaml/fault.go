package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxFaults bounds what is reported of one file: a foreign file may have a
// hundred thousand errors.
const maxFaults = 10

// Fault is one error in a file.
type Fault struct {
	Line, Column int    // from 1; 0: the error has no single place, such as a missing field
	Message      string // begins with the path of the field
}

// Error lists the errors of one file, in its order.
type Error struct {
	Kind   string // what the file is: "policy"
	File   string // its name; empty: unknown
	Faults []Fault
	More   int // errors that Faults leaves out
}

// Error gives one line for each fault:
//
//	policy /etc/numavisor/policy.yaml:12:5: balance.moed: no such field; did you mean balance.mode?
func (e *Error) Error() string {
	file := e.Kind
	if e.File != "" {
		file += " " + e.File
	}
	var lines []string
	for _, f := range e.Faults {
		at := file
		if f.Line > 0 {
			at += fmt.Sprintf(":%d:%d", f.Line, f.Column)
		}
		lines = append(lines, at+": "+f.Message)
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("%s: %d more errors", file, e.More))
	}
	return strings.Join(lines, "\n")
}

// In returns the error with the name of the file that it is about.
func (e *Error) In(file string) *Error {
	named := *e
	named.File = file
	return &named
}

// FieldError is a field whose value is not allowed. Code that checks decoded
// values returns it, on its own or joined with others, so that Locate finds the
// place in the file.
type FieldError struct {
	Field   string // path: "limits.max_distance", "topology.cells[1].memory"
	Value   string // as it was given
	Allowed string
}

// Error names field, value and what is allowed.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %s; allowed: %s", e.Field, e.Value, e.Allowed)
}

// fieldErrors returns the field errors that err joins and wraps, and the other
// errors that it joins.
func fieldErrors(err error) (fields []*FieldError, others []error) {
	var one *FieldError
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
	case errors.As(err, &joined):
		for _, e := range joined.Unwrap() {
			f, o := fieldErrors(e)
			fields, others = append(fields, f...), append(others, o...)
		}
	case errors.As(err, &one):
		fields = append(fields, one)
	default:
		others = append(others, err)
	}
	return fields, others
}

// faults collects the errors of one file.
type faults struct {
	list []Fault
	more int
}

// full reports whether another fault is only counted, so that its message need
// not be written.
func (f *faults) full() bool { return len(f.list) >= maxFaults }

func (f *faults) add(line, column int, format string, args ...any) {
	if f.full() {
		f.more++
		return
	}
	f.list = append(f.list, Fault{Line: line, Column: column, Message: fmt.Sprintf(format, args...)})
}

// err returns what was collected in the order of the file, faults without a
// place last; nil: there are none.
func (f *faults) err(kind string) error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b Fault) int {
		if (a.Line == 0) != (b.Line == 0) {
			return b.Line - a.Line
		}
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	return &Error{Kind: kind, Faults: f.list, More: f.more}
}
