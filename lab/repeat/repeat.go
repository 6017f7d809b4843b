// Package repeat lets a test in the lab report that its emulator failed. lab/suite runs such tests again, no others.
package repeat

import (
	"errors"
	"os"
	"testing"
)

// Variable names the file for the names of the tests to run again. Without it, no test is repeated.
const Variable = "NUMAVISOR_LAB_FAULTS"

// Note adds the test to those that run again.
func Note(t testing.TB) {
	t.Helper()
	path := os.Getenv(Variable)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(t.Name() + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error("noting the fault of the emulator:", err)
	}
}
