package e2e_test

import (
	"encoding/json"
	"testing"

	"github.com/numavisor/numavisor/internal/plan"
)

// An unmanaged VM has its memory far from its vCPUs: balance shows the move as
// advice and changes nothing. bind can carry out the advice.
func TestLabBalanceShowsWhatPays(t *testing.T) {
	l := boot(t, "square4")
	l.startForeign(
		t,
		foreign{
			name:      "f",
			memoryMiB: 64,
			vcpus:     1,
			numatune:  "<memory mode='strict' nodeset='3'/>",
			cputune:   "<vcpupin vcpu='0' cpuset='0-1'/>",
		},
	)
	defer l.sh(t, "virsh -q destroy f")
	l.sh(t, "virsh -q resume f")
	round := l.balance(t)
	if len(round.Moves) != 1 || len(round.Moves[0].Guests) != 1 || !round.Moves[0].Advised {
		t.Fatalf("one advised move is wanted: %s", round.Text())
	}
	to := round.Moves[0].Guests[0].Placement.Nodes.String()
	if v := l.show(t, "f"); v.Truth.Managed || *v.Truth.LocalShare > 0.1 {
		t.Errorf("it was changed: %+v", v.Truth)
	}
	l.must(t, "bind", "f", "--nodes", to)
	if round := l.balance(t); len(round.Moves) > 0 {
		t.Errorf("after the move there is another: %s", round.Text())
	}
}

func (l *labHost) balance(t *testing.T) plan.Plan {
	t.Helper()
	var r plan.Plan
	if err := json.Unmarshal([]byte(l.must(t, "balance", "-o", "json").stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r
}
