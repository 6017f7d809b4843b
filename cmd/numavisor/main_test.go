package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// An error is one short line; its causes are in lines of their own.
func TestPrintError_CausesAreBelowTheLine(t *testing.T) {
	hidden := &operate.HiddenError{What: "cannot see VMs", Gaps: []inventory.Gap{{What: "VMs of qemu", Why: "a\nb"}}}
	two := &operate.HiddenError{What: "cannot see VMs",
		Gaps: []inventory.Gap{{What: "VMs of qemu", Why: "a"}, {What: "VMs of xen", Why: "b"}}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("x: y; do z"), "numavisor: x: y; do z\n"},
		{errors.Join(errors.New("x"), errors.New("y")), "numavisor: x; y\n"},
		{hidden, "numavisor: cannot see VMs; correct the cause and try again\n  cause: a; b\n"},
		{two, "numavisor: cannot see VMs; correct the cause and try again\n" +
			"  cause: VMs of qemu: a\n  cause: VMs of xen: b\n"},
		{fmt.Errorf("%w; or do z", hidden),
			"numavisor: cannot see VMs; correct the cause and try again; or do z\n  cause: a; b\n"},
		{errors.Join(hidden, errors.New("y")),
			"numavisor: cannot see VMs; correct the cause and try again; y\n  cause: a; b\n"},
		{renamedError{hidden}, "numavisor: another text\n  cause: a; b\n"},
	} {
		var out strings.Builder
		printError(&out, "table", c.err)
		if out.String() != c.want {
			t.Errorf("%v: printed %q, want %q", c.err, out.String(), c.want)
		}
	}
	var out strings.Builder
	printError(&out, "json", fmt.Errorf("placing: %w", hidden))
	var got struct{ Error struct{ Message string } }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil ||
		got.Error.Message != "placing: cannot see VMs: a; b" {
		t.Errorf("JSON %s (%v)", out.String(), err)
	}
}

// renamedError wraps an error and has another text.
type renamedError struct{ error }

func (renamedError) Error() string { return "another text" }

func (e renamedError) Unwrap() error { return e.error }
