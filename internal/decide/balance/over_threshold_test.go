package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

func TestOverThreshold(t *testing.T) {
	remote := func(share float64) *inventory.Remote {
		return &inventory.Remote{Share: share, Source: inventory.AccessCounter}
	}
	b := policy.Balance{}.WithDefaults()
	for name, c := range map[string]struct {
		load inventory.GuestLoad
		want bool
	}{
		"below thresholds":    {inventory.GuestLoad{CPU: 1, Remote: remote(0.05)}, false},
		"not measured":        {inventory.GuestLoad{CPU: 1}, false},
		"remote":              {inventory.GuestLoad{CPU: 1, Remote: remote(0.2)}, true},
		"waits":               {inventory.GuestLoad{CPU: 1, Wait: 0.2}, true},
		"waits a little":      {inventory.GuestLoad{CPU: 1, Wait: 0.05}, false},
		"remote, idle":        {inventory.GuestLoad{CPU: 0.01, Remote: remote(1)}, false},
		"gets nothing at all": {inventory.GuestLoad{Wait: 1}, true},
	} {
		if got := OverThreshold([]inventory.GuestSample{{Name: "g", Load: c.load}}, b)["g"]; got != c.want {
			t.Errorf("%s: over a threshold %v, want %v", name, got, c.want)
		}
	}
}
