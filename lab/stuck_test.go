package lab

import (
	"context"
	"errors"
	"testing"
)

func TestStoppedCPUs_AreProvenByOthersThatRun(t *testing.T) {
	late, offline := context.DeadlineExceeded, errors.New("status 1: invalid argument")
	for _, c := range []struct {
		about    string
		ends     []error
		silent   bool
		anything bool
	}{
		{"all wake", []error{nil, nil, nil}, false, false},
		{"one sleeps on", []error{nil, late, nil}, true, true},
		{"all sleep on: the lab is slow", []error{late, late, late}, false, true},
		{"a CPU is offline", []error{nil, offline, nil}, false, true},
		{"one sleeps on, one is offline", []error{nil, offline, late}, true, true},
	} {
		err := stoppedCPUs(c.ends)
		if errors.Is(err, ErrSilent) != c.silent || (err != nil) != c.anything {
			t.Errorf("%s: %v", c.about, err)
		}
	}
}
