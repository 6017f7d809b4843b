package main

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// A bind that stopped halfway says how to finish it, in a command that works:
// the guest's placement is recorded, a process's is not.
func TestAStoppedBindSaysHowToGoOn(t *testing.T) {
	lost := errors.New("lost")
	for _, c := range []struct {
		pid   int
		args  []string
		guest string
		want  string
	}{
		{0, []string{"web1"}, "web1", "binding web1 stopped: lost; the VM runs on; run 'numavisor bind web1' " +
			"again to finish"},
		{4711, nil, "pid-4711", "binding process 4711 stopped: lost; it runs on; run 'numavisor bind --pid 4711' " +
			"again, with the same flags, to finish"},
	} {
		command := &cobra.Command{}
		command.SetOut(io.Discard)
		command.Flags().String("output", "table", "")
		b := operate.Bound{
			Plan:     plan.Steps{Guest: c.guest},
			Outcomes: []apply.Outcome{{Status: apply.Done}, {Status: apply.Failed}},
		}
		err := report(command, bindTarget(c.pid, c.args), b, lost)
		if err == nil || err.Error() != c.want || statusOf(err) != exitPartial || !errors.Is(err, lost) {
			t.Errorf("status %d: %v, want %s", statusOf(err), err, c.want)
		}
		// An action that did not begin is a failure, not a partial success.
		b.Outcomes = nil
		if err := report(command, bindTarget(c.pid, c.args), b, lost); statusOf(err) != exitFailed {
			t.Errorf("status %d of a bind that did not begin: %v", statusOf(err), err)
		}
	}
}

// Where the balancer would choose otherwise, a dry run says what and at what cost.
func TestPrintBalancing(t *testing.T) {
	for want, o := range map[string]operate.Balancing{
		"The balancer would not move g: it is not degraded\n": {Why: "it is not degraded"},
		"The balancer would choose nodes 3 (move-guest-memory, copies no memory; cost 1.01, that of this bind 1): " +
			"why\n" +
			"  to choose the same: numavisor bind g --nodes 3\n": {Why: "why", Cost: 1.01, BindCost: 1,
			Nodes: topology.MustParseSet[topology.NodeID]("3"), Move: &plan.Move{Kind: plan.FetchLocal}},
	} {
		var out bytes.Buffer
		if printBalancing(&out, "g", &o); out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}
