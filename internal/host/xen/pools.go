package xen

import (
	"context"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
)

// Pools returns the host's cpupools: the one of new guests comes first.
func (d *Driver) Pools(ctx context.Context) ([]inventory.Pool, error) {
	list, err := d.xl(ctx, "cpupool-list")
	if err != nil {
		return nil, err
	}
	cpus, err := d.xl(ctx, "cpupool-list", "-c")
	if err != nil {
		return nil, err
	}
	return parsePools(list, cpus)
}

// ChangePool implements operate.PoolControl.
func (d *Driver) ChangePool(ctx context.Context, s plan.PoolStep) error {
	var args []string
	switch s.Kind {
	case plan.RenamePool:
		args = []string{"cpupool-rename", s.Pool, s.To}
	case plan.MoveToPool:
		return d.on(ctx, fmt.Sprintf("to pool %q: moving", s.Pool), s.Guest, d.limit, func(id string) []string {
			return []string{"cpupool-migrate", id, s.Pool}
		})
	case plan.DeletePool:
		args = []string{"cpupool-destroy", s.Pool}
	case plan.FreeCPUs:
		args = []string{"cpupool-cpu-remove", s.Pool, s.CPUs.String()}
	case plan.CreatePool:
		args = []string{"cpupool-create", fmt.Sprintf("name=%q", s.Pool), fmt.Sprintf("sched=%q", s.Scheduler),
			fmt.Sprintf("cpus=%q", s.CPUs.String())}
	case plan.AddCPUs:
		args = []string{"cpupool-cpu-add", s.Pool, s.CPUs.String()}
	default:
		return fmt.Errorf("changing CPU pools: %w: step %q is unknown", guest.ErrRefused, s.Kind)
	}
	if _, err := d.xl(ctx, args...); err != nil {
		return refused(fmt.Errorf("%s: %w", s, err))
	}
	return nil
}

// remember records which domains are in a pool whose scheduler ignores soft affinity, and what dom0 takes.
func (d *Driver) remember(s *state) {
	hardOnly, capped := map[int]bool{}, map[int]bool{}
	for i := range s.domains {
		for j := range s.pools {
			if s.pools[j].Name == s.domains[i].Pool && !s.pools[j].SoftAffinity() {
				hardOnly[s.domains[i].ID] = true
			}
		}
	}
	for id, c := range s.configs {
		if c.Config.Build.Scheduler.Cap > 0 {
			capped[id] = true
		}
	}
	d.seen.Lock()
	d.capped = capped
	d.seen.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hardOnly, d.control = hardOnly, s.control()
}

// soft returns the soft affinity to set with a hard one: the same CPUs, so that a preference from before does
// not lead the vCPU away, or none where the scheduler ignores it.
func (d *Driver) soft(id int, hard string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hardOnly[id] {
		return "all"
	}
	return hard
}
