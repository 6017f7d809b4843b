// Package inventorytest reads saved inventories for the tests of other packages.
package inventorytest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Saved reads an inventory of testdata/cases of the package under test.
func Saved(t *testing.T, name string) *inventory.Host {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "cases", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := inventory.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return &h
}
