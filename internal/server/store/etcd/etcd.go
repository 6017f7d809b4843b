// Package etcd keeps a fleet's records in etcd: in a server in this process, which may be one of
// several members, or in a cluster that others run.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/numavisor/numavisor/internal/server/store"
)

// Store is a store in etcd. Open makes one.
type Store struct {
	config Config
	client *clientv3.Client
	server *server // nil: the cluster is external
	log    *zapCore
	packer packer
	doubt  doubt

	stop context.CancelFunc
	all  sync.WaitGroup // the goroutines that keep the database small
}

// Open opens the store, and waits until it can be written or ctx ends; the store itself
// outlives ctx. Callers close it. Open does not look at the records: see store.Prepare.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Store{config: c.withDefaults(), doubt: doubt{born: time.Now()}}
	s.log = newZapCore(s.config.Log)
	var err error
	if c.Folder != "" {
		if s.server, err = start(ctx, s.config, s.log); err != nil {
			return nil, err
		}
		s.client = v3client.New(s.server.Server)
	} else if s.client, err = s.config.dial(ctx, s.log.logger()); err != nil {
		return nil, err
	}
	s.dropPages() // etcd has read all of them for its index
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.all.Go(func() { s.keep(keeping) })
	return s, nil
}

// dial connects to an external cluster, and checks that it answers.
func (c Config) dial(ctx context.Context, log *zap.Logger) (*clientv3.Client, error) {
	var secure *tls.Config
	if !c.TLS.empty() {
		info := transport.TLSInfo{CertFile: c.TLS.Certificate, KeyFile: c.TLS.Key, TrustedCAFile: c.TLS.CA}
		var err error
		if secure, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("the files for TLS with etcd: %w", err)
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: secure, Username: c.User, Password: c.Password, Logger: log,
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		Context: context.WithoutCancel(ctx), DialTimeout: c.Timeout,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	wait, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if _, err := client.Get(wait, store.Schema, clientv3.WithSerializable()); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("connect to etcd at %v: %w: %w", c.Endpoints, store.ErrUnavailable, err)
	}
	return client, nil
}

// closeTime limits how long a server of etcd that has failed may take to end.
const closeTime = 5 * time.Second

// Close ends the store, and the server in this process. A goroutine of etcd that has failed may hold a lock for
// ever; Close does not wait for it, so that the process can end and be started again.
func (s *Store) Close() error {
	ended := make(chan error, 1)
	go func() { ended <- s.end() }()
	select {
	case err := <-ended:
		return err
	case <-s.Failed():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(closeTime):
		return fmt.Errorf("etcd does not end after its failure: %s", s.Failure())
	}
}

func (s *Store) end() error {
	s.stop()
	s.all.Wait()
	err := s.client.Close()
	if s.server != nil {
		s.server.close()
	}
	if errors.Is(err, context.Canceled) { // how a client without a connection ends
		return nil
	}
	return err
}

// Failed is closed when the server in this process can never write again, for example because its
// disk is full. The process should then end and be started again. Failure says why.
func (s *Store) Failed() <-chan struct{} { return s.log.fatal.failed }

// Failure is why the store has failed; empty: it has not.
func (s *Store) Failure() string { return s.log.fatal.why() }

// Get returns the record of a key.
func (s *Store) Get(ctx context.Context, key string) (store.Record, error) {
	response, stale, err := s.read(ctx, key)
	if err != nil {
		return store.Record{}, err
	}
	r, err := s.first(key, response)
	if stale != nil && errors.Is(err, store.ErrNotFound) {
		return r, fmt.Errorf("%w: %w", err, stale)
	}
	return r, errors.Join(err, stale)
}

// first returns the record of a response for one key.
func (s *Store) first(key string, response *clientv3.GetResponse) (store.Record, error) {
	if len(response.Kvs) == 0 {
		return store.Record{}, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return s.packer.record(response.Kvs[0])
}

// Look is Get as one member knows the record.
func (s *Store) Look(ctx context.Context, key string) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout*2/5)
	defer cancel()
	response, err := s.client.Get(wait, key, clientv3.WithSerializable())
	if err != nil {
		return store.Record{}, s.explain(ctx, "read", err)
	}
	return s.first(key, response)
}

// etcd returns records in pages, which it collects in memory. It counts all records after a page too, so a list of many
// small records needs large pages: their number doubles until they have largePage bytes.
const (
	page      = 1000
	mostPage  = 32 * page
	largePage = 4 << 20
)

// List returns the records of a prefix.
func (s *Store) List(ctx context.Context, prefix string) ([]store.Record, int64, error) {
	for {
		records, revision, err := s.list(ctx, prefix)
		if errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil {
			continue // it took longer than the history is retained
		}
		return records, revision, err
	}
}

func (s *Store) list(ctx context.Context, prefix string) (records []store.Record, revision int64, err error) {
	revision, stale, err := s.pages(ctx, prefix, 0, func(part []store.Record) error {
		records = append(records, part...)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return records, revision, stale
}

// Scan calls take with the records of some prefixes, a page at a time.
func (s *Store) Scan(
	ctx context.Context, prefixes []string, take func([]store.Record) error,
) (revision int64, err error) {
	var stale error
	read := 0
	for _, prefix := range prefixes {
		var old error
		revision, old, err = s.pages(ctx, prefix, revision, func(part []store.Record) error {
			for i := range part {
				read += len(part[i].Value)
			}
			if read > dropAfter {
				s.dropPages()
				read = 0
			}
			return take(part)
		})
		if err != nil {
			return 0, err
		}
		stale = errors.Join(stale, old)
	}
	s.dropPages()
	return revision, stale
}

// dropAfter is after how many bytes of records Scan drops the pages that it has read.
const dropAfter = 32 << 20

// pages calls take with each page of the records of a prefix, as of a revision; 0: of the present one, which it
// returns.
func (s *Store) pages(
	ctx context.Context, prefix string, at int64, take func([]store.Record) error,
) (revision int64, stale, err error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from, end = "\x00", "\x00"
	}
	revision = at
	for limit := int64(page); ; {
		options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(limit)}
		if revision > 0 {
			options = append(options, clientv3.WithRev(revision))
		}
		response, old, err := s.read(ctx, from, options...)
		if err != nil {
			return 0, nil, err
		}
		if revision == 0 {
			revision = response.Header.Revision
		}
		if old != nil {
			stale = old
		}
		records, size, err := s.packer.recordsOf(response.Kvs)
		if err == nil {
			err = take(records)
		}
		if err != nil || !response.More {
			return revision, stale, err
		}
		if size < largePage {
			limit = min(2*limit, mostPage)
		} else {
			limit = max(limit/2, page)
		}
		from = records[len(records)-1].Key + "\x00"
	}
}

// recordsOf returns records as etcd has them, and how many bytes it has of their values.
func (p *packer) recordsOf(kvs []*mvccpb.KeyValue) (records []store.Record, size int, err error) {
	records = make([]store.Record, 0, len(kvs))
	for _, kv := range kvs {
		r, err := p.record(kv)
		if err != nil {
			return nil, 0, err
		}
		records, size = append(records, r), size+len(kv.Value)
	}
	return records, size, nil
}

// doubt is a time in which reads do not wait for a quorum, since one has just done so in vain. It is measured by the
// monotonic clock: the wall clock may be set back by days.
type doubt struct {
	born  time.Time
	until atomic.Int64 // in ns since born
}

// doubtTime is how long a doubt lasts.
const doubtTime = time.Second

func (d *doubt) begin() { d.until.Store(int64(time.Since(d.born) + doubtTime)) }

func (d *doubt) over() bool { return int64(time.Since(d.born)) >= d.until.Load() }

// read reads with the assurance of a quorum or, if there is none, from one member.
func (s *Store) read(
	ctx context.Context, key string, options ...clientv3.OpOption,
) (response *clientv3.GetResponse, stale, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if s.doubt.over() {
		certain, cancel := context.WithTimeout(ctx, s.config.Timeout*2/5)
		response, err = s.client.Get(certain, key, options...)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, rpctypes.ErrCompacted) {
			return response, nil, s.explain(ctx, "read", err)
		}
		s.doubt.begin()
	}
	one, cancel := context.WithTimeout(ctx, s.config.Timeout*2/5)
	defer cancel()
	response, err = s.client.Get(one, key, append(options, clientv3.WithSerializable())...)
	return response, store.ErrStale, s.explain(ctx, "read", err)
}

// Commit makes a transaction.
func (s *Store) Commit(ctx context.Context, t store.Txn) (int64, error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	if err := s.canWrite(ctx); err != nil {
		return 0, err
	}
	var conditions []clientv3.Cmp
	var changes, keys []clientv3.Op
	for _, c := range t.If {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Revision))
		keys = append(keys, clientv3.OpGet(c.Key, clientv3.WithKeysOnly()))
	}
	for _, p := range t.Put {
		lease := clientv3.WithLease(clientv3.LeaseID(p.Lease))
		value, err := s.packer.pack(p.Value)
		if err != nil {
			return 0, fmt.Errorf("compress %s: %w", p.Key, err)
		}
		changes = append(changes, clientv3.OpPut(p.Key, value, lease))
	}
	for _, key := range t.Delete {
		changes = append(changes, clientv3.OpDelete(key))
	}
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	response, err := s.client.Txn(wait).If(conditions...).Then(changes...).Else(keys...).Commit()
	if err != nil {
		return 0, s.explain(ctx, "write", err)
	}
	if !response.Succeeded {
		return 0, conflict(t.If, response)
	}
	return response.Header.Revision, nil
}

// conflict finds the first condition that did not hold.
func conflict(conditions []store.Condition, response *clientv3.TxnResponse) error {
	for i, c := range conditions {
		var revision int64
		if kvs := response.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			revision = kvs[0].ModRevision
		}
		if revision != c.Revision {
			return &store.ConflictError{Key: c.Key}
		}
	}
	return errors.New("etcd refused a transaction whose conditions hold")
}

// Lease makes a lease.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	if err := s.canWrite(ctx); err != nil {
		return 0, err
	}
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	response, err := s.client.Grant(wait, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, s.explain(ctx, "make a lease", err)
	}
	return store.LeaseID(response.ID), nil
}

// Renew renews a lease.
func (s *Store) Renew(ctx context.Context, id store.LeaseID) error {
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	_, err := s.client.KeepAliveOnce(wait, clientv3.LeaseID(id))
	return s.explain(ctx, "renew a lease", err)
}

// Revoke ends a lease.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	_, err := s.client.Revoke(wait, clientv3.LeaseID(id))
	return s.explain(ctx, "end a lease", err)
}

// explain turns an error of etcd into one of the store.
func (s *Store) explain(ctx context.Context, action string, err error) error {
	var why string
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", store.ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%s: the lease has ended: %w", action, store.ErrNotFound)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w: raise --max-request-bytes and --max-txn-ops of etcd to their defaults",
			store.ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		why = "its database has reached its largest size. Numavisor removes old revisions, and writes again if that " +
			"frees enough; otherwise raise the size"
	case s.Failure() != "":
		why = "its server has failed (" + s.Failure() +
			"): free space on its disk or replace it, and restart numavisor-server"
	case lacksQuorum(err):
		why = "more than half of its members must run and reach each other: start those that are missing"
	default:
		return fmt.Errorf("%s: %w: %w", action, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w: %s: %w", action, store.ErrUnavailable, why, err)
}

// lacksQuorum says whether an error is what a member returns that does not reach enough others.
func lacksQuorum(err error) bool {
	return slices.ContainsFunc([]error{
		context.DeadlineExceeded, rpctypes.ErrNoLeader, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail,
		rpctypes.ErrTimeoutDueToConnectionLost, rpctypes.ErrLeaderChanged,
	}, func(target error) bool { return errors.Is(err, target) })
}
