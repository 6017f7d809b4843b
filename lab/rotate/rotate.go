// Package rotate spreads the lab's longest tests over landings: 'make test' runs
// what proves every path once and a third of the full matrices, of the kill
// points and of the long measurements. Which third follows the number of
// commits; 'make test-all' runs all.
package rotate

import (
	"os"
	"strconv"
	"testing"
)

// Variable holds the third that runs: 0, 1 or 2. All thirds run without it.
const Variable = "NUMAVISOR_LAB_THIRD"

const thirds = 3

// Turn reports whether case i of a matrix runs this time.
func Turn(i int) bool {
	third, err := strconv.Atoi(os.Getenv(Variable))
	return err != nil || i%thirds == third%thirds
}

// Test skips a test that belongs to another third.
func Test(t testing.TB, third int) {
	t.Helper()
	if !Turn(third) {
		t.Skipf("belongs to third %d, this run is of third %s: 'make test-all' runs all", third, os.Getenv(Variable))
	}
}
