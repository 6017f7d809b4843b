// Package rotate spreads the lab's longest tests over landings: 'make test' runs
// what proves every path once, a third of the full matrices and of the kill
// points, and a sixth of the other long tests. Which part follows the number of
// commits; 'make test-all' runs all.
package rotate

import (
	"os"
	"strconv"
	"testing"
)

// Variable holds the part that runs: 0 to 5. All parts run without it.
const Variable = "NUMAVISOR_LAB_PART"

const (
	thirds = 3
	// Parts is how many landings run every test once.
	Parts = 6
)

// Turn reports whether case i of a matrix runs this time: one in three.
func Turn(i int) bool { return turn(i, thirds) }

func turn(i, of int) bool {
	part, err := strconv.Atoi(os.Getenv(Variable))
	return err != nil || i%of == part%of
}

// Test skips a test that belongs to another part: one in six runs.
func Test(t testing.TB, part int) {
	t.Helper()
	if !turn(part, Parts) {
		t.Skipf("belongs to part %d, this run is of part %s: 'make test-all' runs all", part, os.Getenv(Variable))
	}
}
