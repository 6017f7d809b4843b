package handoff

import (
	"context"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// startTime bounds the wait for the CPUs of a new VM: the daemon gets them by force
	// after two periods.
	startTime = 10 * time.Second
	startPoll = 20 * time.Millisecond
)

// AwaitStart waits until the record gives the CPUs with which a VM starts to no other
// running VM. The VM's claim makes the daemon release them. The error says which VM has one,
// for lack of a daemon that hands it over.
func AwaitStart(
	ctx context.Context, file, name string, first topology.CPUSet, runs func(vm string) bool,
) error {
	deadline := time.Now().Add(startTime)
	for {
		record, err := ReadRecord(file)
		if err != nil {
			return err
		}
		busy := ""
		for _, g := range record.Grants {
			if first.Contains(g.CPU) && g.Guest != name && runs(g.Guest) {
				busy = fmt.Sprintf("CPU %d serves VM %s", g.CPU, g.Guest)
				break
			}
		}
		if busy == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s, and no daemon hands it over to VM %s, which starts on it: start the daemon", busy,
				name)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the CPUs of VM %s: %s: %w", name, busy, ctx.Err())
		case <-time.After(startPoll):
		}
	}
}
