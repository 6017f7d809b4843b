package etcd_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/server/store/storetest"
)

// external starts a cluster of one member that is not Numavisor's, with etcd's defaults, and returns
// the URL for its clients.
func external(t *testing.T) string {
	t.Helper()
	c := configure(t, 1)[0]
	ready, _ := startMember(t, c)
	<-ready
	return c.AdvertiseClientUrls[0].String()
}

// configure returns the configurations of the members of a cluster.
func configure(t *testing.T, members int) (all []*embed.Config) {
	t.Helper()
	var cluster []string
	for i := range members {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprint("m", i), t.TempDir()
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		client, peer := url.URL{Scheme: "http", Host: address(t)}, url.URL{Scheme: "http", Host: address(t)}
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		c.EnableGRPCGateway = false
		cluster = append(cluster, c.Name+"="+peer.String())
		all = append(all, c)
	}
	for _, c := range all {
		c.InitialCluster = strings.Join(cluster, ",")
	}
	return all
}

// startMember starts a member, and returns how to wait until it has a quorum and how to stop it.
func startMember(t *testing.T, c *embed.Config) (ready <-chan struct{}, stop func()) {
	t.Helper()
	m, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(m.Close)
	t.Cleanup(stop)
	return m.Server.ReadyNotify(), stop
}

// TestStore_WhileMembersOfAnExternalClusterAreLost stops one of three members, then another one, and starts one again.
func TestStore_WhileMembersOfAnExternalClusterAreLost(t *testing.T) {
	t.Parallel()
	members := configure(t, 3)
	c := etcd.Config{Timeout: 2 * time.Second}
	var ready []<-chan struct{}
	var stop []func()
	for _, m := range members {
		isReady, end := startMember(t, m)
		ready, stop = append(ready, isReady), append(stop, end)
		c.Endpoints = append(c.Endpoints, m.AdvertiseClientUrls[0].String())
	}
	for _, r := range ready {
		<-r
	}
	s := open(t, c)
	put(t, s, "/a", "0")
	stop[0]()
	writeUntil(t, s, "1")
	stop[1]()
	wantNoQuorum(t, s)
	startMember(t, members[1])
	writeUntil(t, s, "2")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, err := s.Get(t.Context(), "/a")
		if err == nil && string(r.Value) == "2" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with a quorum again: %s, %v", r.Value, err)
		}
	}
}

// writeUntil writes until it succeeds: the members choose a leader first.
func writeUntil(t *testing.T, s store.Store, value string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: "/a", Value: []byte(value)}}})
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestStore_InAnExternalCluster runs the suite through the network.
func TestStore_InAnExternalCluster(t *testing.T) {
	t.Parallel()
	at := external(t)
	storetest.Run(t, func(t *testing.T) store.Store {
		t.Helper()
		return open(t, etcd.Config{Endpoints: []string{at}})
	})
}

func TestOpen_SaysThatAnExternalClusterDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := etcd.Config{Endpoints: []string{"http://" + address(t)}, Timeout: 300 * time.Millisecond}
	if s, err := etcd.Open(t.Context(), c); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("opened: %v", err)
		_ = s.Close()
	}
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	files := etcd.TLS{CA: "ca", Certificate: "cert", Key: "key"}
	three := map[string]string{"a": "https://10.0.0.1:2380", "b": "https://10.0.0.2:2380", "c": "https://10.0.0.3:2380"}
	member := etcd.Member{Name: "a", Listen: "https://10.0.0.1:2380", Peers: three, TLS: files}
	changed := func(change func(*etcd.Member)) etcd.Config {
		m := member
		change(&m)
		return etcd.Config{Folder: "/f", Member: m}
	}
	for name, c := range map[string]struct {
		config etcd.Config
		valid  bool
	}{
		"a folder":          {etcd.Config{Folder: "/f"}, true},
		"a member":          {changed(func(*etcd.Member) {}), true},
		"an endpoint":       {etcd.Config{Endpoints: []string{"https://etcd:2379"}, TLS: files}, true},
		"loopback":          {etcd.Config{Endpoints: []string{"http://127.0.0.1:2379", "http://[::1]:2379"}}, true},
		"nothing":           {etcd.Config{}, false},
		"both":              {etcd.Config{Folder: "/f", Endpoints: []string{"http://127.0.0.1:2379"}}, false},
		"no TLS":            {etcd.Config{Endpoints: []string{"http://etcd:2379"}}, false},
		"no files":          {etcd.Config{Endpoints: []string{"https://etcd:2379"}}, false},
		"a file is missing": {etcd.Config{Endpoints: []string{"https://etcd:2379"}, TLS: etcd.TLS{CA: "ca"}}, false},
		"no port":           {etcd.Config{Endpoints: []string{"https://etcd"}, TLS: files}, false},
		"no URL":            {etcd.Config{Endpoints: []string{"etcd:2379"}, TLS: files}, false},
		"a negative time":   {etcd.Config{Folder: "/f", Timeout: -1}, false},
		"a member alone":    {etcd.Config{Folder: "/f", Member: etcd.Member{Name: "a"}}, false},
		"an unknown name":   {changed(func(m *etcd.Member) { m.Name = "d" }), false},
		"members, no TLS":   {changed(func(m *etcd.Member) { m.TLS = etcd.TLS{} }), false},
		"no listener":       {changed(func(m *etcd.Member) { m.Listen = "" }), false},
		"a bad name": {changed(func(m *etcd.Member) {
			m.Name, m.Peers = "a=b", map[string]string{"a=b": m.Listen}
		}), false},
	} {
		if err := c.config.Validate(); c.valid != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
