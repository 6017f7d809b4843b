package capacity_test

import (
	"math"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/capacity"
)

// The host's work is no more in all than what guests leave of all loads.
func TestHostWork(t *testing.T) {
	for _, c := range []struct{ rest, want []float64 }{
		{[]float64{0.5, 0, 0.1}, []float64{0.5, 0, 0.1}},
		{[]float64{1.5, -0.5, -0.1}, []float64{0.9, 0, 0}},
		{[]float64{1, 1, -1}, []float64{0.5, 0.5, 0}},
		{[]float64{0.5, -1}, []float64{0, 0}},
		{[]float64{-0.5, -1}, []float64{0, 0}},
		{nil, nil},
	} {
		for i, got := range capacity.HostWork(append([]float64(nil), c.rest...)) {
			if math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("%v left: node %d has %v CPUs of the host's work, want %v", c.rest, i, got, c.want[i])
			}
		}
	}
}
