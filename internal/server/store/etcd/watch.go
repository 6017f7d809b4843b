package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/numavisor/numavisor/internal/server/store"
)

// Watch sends the changes of a prefix after a revision.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) <-chan store.Changes {
	out := make(chan store.Changes)
	go func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx) // also ends etcd's part when the watch fails
		defer cancel()
		if err := s.watch(ctx, prefix, after, out); err != nil && ctx.Err() == nil {
			send(ctx, out, store.Changes{Err: err})
		}
	}()
	return out
}

func (s *Store) watch(ctx context.Context, prefix string, after int64, out chan<- store.Changes) error {
	from := ctx
	if s.server == nil { // a member that has lost the others would show nothing
		from = clientv3.WithRequireLeader(ctx)
	}
	options := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithRev(after + 1),
		clientv3.WithProgressNotify(), // so that a broken connection does not resume before a compaction
	}
	for response := range s.client.Watch(from, prefix, options...) {
		switch err := response.Err(); {
		case err != nil && (response.CompactRevision > 0 || errors.Is(err, rpctypes.ErrCompacted)):
			return store.ErrCompacted
		case err != nil:
			return s.explain(ctx, "watch", err)
		}
		all, err := s.packer.split(response.Events)
		if err != nil {
			return err
		}
		for _, c := range all {
			if !send(ctx, out, c) {
				return nil
			}
		}
	}
	return s.explain(ctx, "watch", errEnded)
}

var errEnded = errors.New("the watch has ended")

// split returns the events by transaction: etcd may send those of several at once, but
// never part of those of one.
func (p *packer) split(events []*clientv3.Event) (all []store.Changes, err error) {
	for _, e := range events {
		if n := len(all); n == 0 || all[n-1].Revision != e.Kv.ModRevision {
			all = append(all, store.Changes{Revision: e.Kv.ModRevision})
		}
		c := &all[len(all)-1]
		r, err := p.record(e.Kv)
		if err != nil {
			return nil, err
		}
		c.Events = append(c.Events, store.Event{Record: r, Deleted: e.Type == clientv3.EventTypeDelete})
	}
	return all, nil
}

func send(ctx context.Context, out chan<- store.Changes, c store.Changes) bool {
	select {
	case out <- c:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
