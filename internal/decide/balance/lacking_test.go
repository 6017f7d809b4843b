package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

func TestLacking(t *testing.T) {
	remote := func(share float64) *inventory.Remote {
		return &inventory.Remote{Share: share, Source: inventory.AccessCounter}
	}
	b := policy.Balance{}.WithDefaults()
	for name, c := range map[string]struct {
		load  inventory.GuestLoad
		lacks bool
	}{
		"content":             {inventory.GuestLoad{CPU: 1, Remote: remote(0.05)}, false},
		"not measured":        {inventory.GuestLoad{CPU: 1}, false},
		"far":                 {inventory.GuestLoad{CPU: 1, Remote: remote(0.2)}, true},
		"waits":               {inventory.GuestLoad{CPU: 1, Wait: 0.2}, true},
		"waits a little":      {inventory.GuestLoad{CPU: 1, Wait: 0.05}, false},
		"far, does nothing":   {inventory.GuestLoad{CPU: 0.01, Remote: remote(1)}, false},
		"gets nothing at all": {inventory.GuestLoad{Wait: 1}, true},
	} {
		if got := Lacking([]inventory.GuestSample{{Name: "g", Load: c.load}}, b)["g"]; got != c.lacks {
			t.Errorf("%s: lacks something %v, want %v", name, got, c.lacks)
		}
	}
}
