package main

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestBalance_TAKESOnlyWhereTheRateWasMeasured(t *testing.T) {
	for measured, want := range map[bool]string{false: "265 MiB  -  ", true: "265 MiB  43.2 s  "} {
		price := plan.Price{Bytes: 265 * topology.MiB, Took: 43200 * time.Millisecond, RateMeasured: measured}
		p := plan.Plan{Moves: []plan.Move{{Kind: plan.MoveGuest, Cost: price,
			Guests: []plan.GuestMove{{Guest: "web1", Bytes: price.Bytes}}}}}
		var out strings.Builder
		printPlan(&out, p, false)
		row := strings.Join(strings.Split(out.String(), "\n")[1:], "")
		if !strings.Contains(strings.Join(strings.Fields(row), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("measured %t: printed\n%swant %q", measured, out.String(), want)
		}
	}
}
