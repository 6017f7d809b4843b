package inventory

import "testing"

// TakeLoads takes the loads of guests that are still the same process, and
// ignores loads of absent guests.
func TestTakeLoads(t *testing.T) {
	load := func(cpu float64) *GuestLoad { return &GuestLoad{CPU: cpu} }
	guest := func(name string, pid int, l *GuestLoad) Guest {
		return Guest{Name: name, PID: pid, Seen: Seen{Load: l}}
	}
	h := Host{
		Guests: []Guest{guest("new", 1, nil), guest("restarted", 22, nil), guest("same", 3, nil),
			guest("unknown", 4, load(4))},
	}
	h.TakeLoads(
		Host{
			Guests: []Guest{guest("gone", 1, load(9)), guest("restarted", 2, load(2)), guest("same", 3, load(3)),
				guest("unknown", 4, nil)},
			Load:                []NodeLoad{{Node: 1, CPU: 5}},
			MoverBytesPerSecond: 7,
		},
	)
	got := map[string]float64{}
	for _, g := range h.Guests {
		if g.Seen.Load != nil {
			got[g.Name] = g.Seen.Load.CPU
		}
	}
	if len(got) != 2 || got["same"] != 3 || got["unknown"] != 4 || len(h.Load) != 1 || h.MoverBytesPerSecond != 7 {
		t.Errorf("loads %v, nodes %v, %d bytes a second", got, h.Load, h.MoverBytesPerSecond)
	}
}
