package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/topology"
)

// maxRevisions bounds the history of a busy fleet, in addition to the time.
const maxRevisions = 50_000

// defragmentFrom is the waste from which the database is defragmented, if it is also more
// than half of it. Writes wait meanwhile: about a second for 100 MiB.
const defragmentFrom = 64 * topology.MiB

// Size is the size of the database.
type Size struct {
	Total    topology.Bytes // of the file
	InUse    topology.Bytes // of it, by records and history
	Revision int64
}

// Size returns the size of the database. Of an external cluster, it is that of the first
// endpoint.
func (s *Store) Size(ctx context.Context) (Size, error) {
	endpoint := ""
	if s.server == nil {
		endpoint = s.config.Endpoints[0]
	}
	status, err := s.client.Status(ctx, endpoint)
	if err != nil {
		return Size{}, s.explain(ctx, "query the size", err)
	}
	return Size{amount(status.DbSize), amount(status.DbSizeInUse), status.Header.Revision}, nil
}

func amount(n int64) topology.Bytes { return topology.Bytes(max(n, 0)) } //nolint:gosec // not negative

// free returns the free space in the file system of a folder.
func free(folder string) (topology.Bytes, error) {
	var at unix.Statfs_t
	err := unix.Statfs(folder, &at)
	return topology.Bytes(at.Bavail) * amount(at.Bsize), err
}

// canWrite refuses writes before the disk is so full that etcd fails.
func (s *Store) canWrite(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.server == nil {
		return nil
	}
	switch left, err := free(s.config.Folder); {
	case err != nil:
		return fmt.Errorf("write: %w: query the free space: %w", store.ErrUnavailable, err)
	case left < s.config.MinFree:
		return fmt.Errorf("write: %w: the file system of %s has %v free and needs at least %v: free some space there",
			store.ErrUnavailable, s.config.Folder, left, s.config.MinFree)
	}
	return nil
}

// keep removes old revisions and returns their room to the file system and to the memory, until ctx ends.
func (s *Store) keep(ctx context.Context) {
	type moment struct {
		at       time.Time
		revision int64
	}
	var past []moment
	compacted := int64(0)
	ticker := time.NewTicker(max(s.config.Retain/10, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		size, err := s.Size(ctx)
		if err != nil {
			continue // the next time
		}
		past = append(past, moment{time.Now(), size.Revision})
		to := size.Revision - maxRevisions
		for len(past) > 0 && time.Since(past[0].at) >= s.config.Retain {
			to = max(to, past[0].revision)
			past = past[1:]
		}
		refuses := s.server != nil && s.refuses(ctx)
		full := s.server != nil && (refuses || size.Total > s.config.Quota/4*3)
		if full {
			to = size.Revision
		}
		if to > compacted && s.Compact(ctx, to) == nil {
			compacted = to
		}
		if s.server != nil {
			s.defragment(ctx, full)
		}
		if refuses {
			s.letWrite(ctx)
		}
		s.dropPages()
	}
}

// Compact forgets the changes of a revision and of those before it.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	_, err := s.client.Compact(wait, revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) { // another server was faster
		return nil
	}
	return s.explain(ctx, "compact", err)
}

// refuses says whether etcd refuses writes because the database has reached its largest size. It
// continues to refuse them when the database is small again, until letWrite.
func (s *Store) refuses(ctx context.Context) bool {
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	alarms, err := s.client.AlarmList(wait)
	return err == nil && slices.ContainsFunc(alarms.Alarms, func(a *pb.AlarmMember) bool {
		return a.Alarm == pb.AlarmType_NOSPACE
	})
}

// letWrite lets etcd write again if the database is small enough.
func (s *Store) letWrite(ctx context.Context) {
	size, err := s.Size(ctx)
	if err != nil || size.Total > s.config.Quota/10*9 {
		return
	}
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	_, err = s.client.AlarmDisarm(wait, &clientv3.AlarmMember{Alarm: pb.AlarmType_NOSPACE,
		MemberID: uint64(s.server.Server.MemberID())})
	if err != nil && ctx.Err() == nil {
		s.config.Log.Warn("cannot let etcd write again", "error", err)
	}
}

// defragment returns unused room to the file system if that pays.
func (s *Store) defragment(ctx context.Context, full bool) {
	size, err := s.Size(ctx)
	if err != nil {
		return
	}
	waste := size.Total - min(size.InUse, size.Total)
	if pays := waste > defragmentFrom && waste > size.Total/2; !pays && !(full && waste > size.Total/10) {
		return
	}
	if err := s.server.Server.Backend().Defrag(); err != nil {
		s.config.Log.Warn("cannot defragment the database of etcd", "error", err)
	}
}
