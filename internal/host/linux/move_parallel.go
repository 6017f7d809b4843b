package linux

import (
	"context"
	"sync"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// leastPart is the least memory that a thread of its own copies.
const leastPart = 16 * topology.MiB

// divide cuts a range into a part for each thread, at bounds of huge pages.
func (m Mover) divide(r inventory.MemoryRange) []inventory.MemoryRange {
	count := min(topology.Bytes(max(m.Threads, 1)), r.Size/leastPart)
	if count < 2 || m.Spread {
		return []inventory.MemoryRange{r}
	}
	span := max(hugeSpan, pageSizeOf(r))
	var parts []inventory.MemoryRange
	end := r.Address + uint64(r.Size)
	for k := range count {
		part := r
		if k > 0 {
			last := &parts[len(parts)-1]
			at := r.Address + uint64(r.Size/count*k)
			at -= at % uint64(span)
			if at <= last.Address || at >= end {
				continue
			}
			last.Size = topology.Bytes(at - last.Address)
			part.Address = at
		}
		part.Size = topology.Bytes(end - part.Address)
		parts = append(parts, part)
	}
	return parts
}

// moveTogether moves parts of one range at the same time. The result is their
// sum, the error that of the first part that has one.
func (m Mover) moveTogether(
	ctx context.Context, parts []inventory.MemoryRange, targets topology.NodeSet,
) (MoveResult, error) {
	var total, processed topology.Bytes
	for _, p := range parts {
		total += p.Size
	}
	var mu sync.Mutex
	results, errs := make([]MoveResult, len(parts)), make([]error, len(parts))
	var running sync.WaitGroup
	for i, p := range parts {
		one := m
		one.Threads = 1
		var last topology.Bytes
		one.Progress = func(done, _ topology.Bytes) {
			mu.Lock()
			defer mu.Unlock()
			processed, last = processed+done-last, done
			if m.Progress != nil {
				m.Progress(processed, total)
			}
		}
		running.Go(func() { results[i], errs[i] = one.Move(ctx, p, targets) })
	}
	running.Wait()
	sum := results[0]
	for _, r := range results[1:] {
		sum.add(r)
	}
	for _, err := range errs {
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (r *MoveResult) add(o MoveResult) {
	for node, bytes := range o.Before {
		r.Before[node] += bytes
	}
	for node, bytes := range o.After {
		r.After[node] += bytes
	}
	r.Moved, r.Failed, r.Absent, r.Hidden = r.Moved+o.Moved, r.Failed+o.Failed, r.Absent+o.Absent, r.Hidden+o.Hidden
	for why, pages := range o.Why {
		r.Why[why] += pages
	}
}
