package main

import (
	"errors"
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
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
