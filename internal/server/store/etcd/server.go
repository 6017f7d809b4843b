package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// Names in the folder of a configuration.
const (
	lockFile   = "lock"
	dataFolder = "etcd"
)

const clusterToken = "numavisor"

// onlyMember is a member that is alone. It listens nowhere; etcd requires a URL.
func onlyMember() Member {
	return Member{Name: "numavisor", Peers: map[string]string{"numavisor": "http://localhost:2380"}}
}

// server is a server of etcd in this process.
type server struct {
	*embed.Etcd
	lock  *flock.Flock
	alone bool // the only member
}

// start starts a server and waits until it has a quorum.
func start(ctx context.Context, c Config, log *zapCore) (*server, error) {
	if err := os.MkdirAll(c.Folder, 0o700); err != nil {
		return nil, err
	}
	// etcd itself would wait silently for the other process.
	s := &server{lock: flock.New(filepath.Join(c.Folder, lockFile)), alone: len(c.Member.Peers) <= 1}
	switch locked, err := s.lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", c.Folder, err)
	case !locked:
		return nil, fmt.Errorf("another process uses the records in %s", c.Folder)
	}
	config, err := c.embedded(log)
	if err == nil {
		s.Etcd, err = embed.StartEtcd(config)
	}
	if err != nil {
		_ = s.lock.Unlock()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Folder, err)
	}
	select {
	case <-s.Server.ReadyNotify():
		return s, nil
	case <-s.Server.StopNotify():
		err = errors.New("it stopped; the log says why")
	case err = <-s.Err():
	case <-ctx.Done():
		err = fmt.Errorf("it did not become ready: %w", ctx.Err())
		if len(c.Member.Peers) > 1 {
			err = fmt.Errorf("%w; fewer than half of its members may run", err)
		}
	}
	s.close()
	return nil, fmt.Errorf("start etcd in %s: %w", c.Folder, err)
}

func (s *server) close() {
	s.Close()
	_ = s.lock.Unlock()
}

// embedded is the configuration of etcd itself.
func (c Config) embedded(log *zapCore) (*embed.Config, error) {
	e := embed.NewConfig()
	e.Dir = filepath.Join(c.Folder, dataFolder)
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log.logger())
	e.QuotaBackendBytes = int64(min(c.Quota, 1<<62)) //nolint:gosec // bounded
	e.ListenClientUrls, e.AdvertiseClientUrls = nil, nil
	e.EnableGRPCGateway = false
	// etcd holds this many transactions in memory; reports of hosts can have 100 KB each.
	e.SnapshotCount, e.SnapshotCatchUpEntries = 1000, 500
	e.BootstrapDefragThresholdMegabytes = 100
	if len(c.Member.Peers) == 0 {
		c.Member = onlyMember()
		// The only member elects itself: nothing to wait for.
		e.TickMs, e.ElectionMs = 50, 500
	}
	e.Name, e.InitialCluster, e.InitialClusterToken = c.Member.Name, c.Member.cluster(), clusterToken
	if c.Member.Joins {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	e.PeerTLSInfo = c.Member.TLS.info()
	var err error
	if e.AdvertisePeerUrls, err = urls(c.Member.Peers[c.Member.Name]); err != nil {
		return nil, err
	}
	e.ListenPeerUrls, err = urls(c.Member.Listen)
	return e, err
}

// cluster writes the members in etcd's way.
func (m Member) cluster() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m.Peers)) {
		all = append(all, name+"="+m.Peers[name])
	}
	return strings.Join(all, ",")
}

func (t TLS) info() transport.TLSInfo {
	info := transport.TLSInfo{CertFile: t.Certificate, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: !t.empty()}
	if t.Name != "" {
		// The name replaces etcd's comparison of the certificate with the address of the connection.
		info.AllowedHostnames, info.SkipClientSANVerify = []string{t.Name}, true
	}
	return info
}

func urls(text string) ([]url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	return []url.URL{*u}, nil
}
