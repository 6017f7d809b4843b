package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

// member says which of several servers this one is. Each has a copy of the records.
type member struct {
	Name string `json:"name"`
	// Listen is the URL at which the other members reach this one, if it is not that of Members.
	Listen string `json:"listen,omitempty"`
	// Members are the URLs of all members by name: https://HOST:PORT.
	Members map[string]string `json:"members"`
}

// cluster is a cluster of etcd that others run.
type cluster struct {
	Endpoints    []string `json:"endpoints"`
	CA           string   `json:"ca,omitempty"`
	Certificate  string   `json:"certificate,omitempty"`
	Key          string   `json:"key,omitempty"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"password_file,omitempty"`
}

// name identifies this server among those of the fleet.
func (c config) name() string {
	if c.Member != nil {
		return c.Member.Name
	}
	return c.Address
}

// records says where etcd is. A member's certificate is made at each start.
func (c config) records(folder string, ca *auth.CA, log *slog.Logger) (etcd.Config, error) {
	if c.Etcd != nil {
		out := etcd.Config{Endpoints: c.Etcd.Endpoints, User: c.Etcd.User, Log: log,
			TLS: etcd.TLS{CA: c.Etcd.CA, Certificate: c.Etcd.Certificate, Key: c.Etcd.Key}}
		if c.Etcd.PasswordFile != "" {
			password, err := os.ReadFile(c.Etcd.PasswordFile)
			if err != nil {
				return out, fmt.Errorf("reading the password of etcd: %w", err)
			}
			out.Password = strings.TrimSpace(string(password))
		}
		return out, nil
	}
	out := etcd.Config{Folder: filepath.Join(folder, etcdFolder), Log: log}
	if c.Member == nil {
		return out, nil
	}
	own := c.Member.Members[c.Member.Name]
	out.Member = etcd.Member{Name: c.Member.Name, Listen: c.Member.Listen, Peers: c.Member.Members, TLS: etcd.TLS{
		CA: filepath.Join(folder, caFile), Certificate: filepath.Join(folder, peerFile),
		Key: filepath.Join(folder, peerKeyFile), Name: auth.MemberName}}
	if out.Member.Listen == "" {
		out.Member.Listen = own
	}
	if err := out.Validate(); err != nil {
		return out, fmt.Errorf("the members in %s: %w", configFile, err)
	}
	return out, c.certify(folder, ca, time.Now())
}

// certify writes a new certificate of this member for the other members. etcd reads the files in each handshake, and
// several times as it starts. So the key stays as long as it can be read: a new certificate fits it, whichever file
// etcd reads first.
func (c config) certify(folder string, ca *auth.CA, now time.Time) error {
	at, err := url.Parse(c.Member.Members[c.Member.Name])
	if err != nil {
		return fmt.Errorf("the members in %s: %w", configFile, err)
	}
	names := []string{at.Hostname()}
	if pair, err := loadPair(folder); err == nil {
		certificate, err := ca.RenewMemberPEM(names, pair.Leaf.PublicKey, now)
		if err != nil {
			return err
		}
		return write(folder, peerFile, certificate, publicMode)
	}
	certificate, key, err := ca.MemberPEM(names, now)
	if err != nil {
		return err
	}
	return errors.Join(write(folder, peerFile, certificate, publicMode), write(folder, peerKeyFile, key, secretMode))
}

// renewCertificate calls certify if the certificate expires soon, or is not valid yet since the clock was ahead.
func (c config) renewCertificate(folder string, ca *auth.CA, now time.Time) error {
	pair, err := loadPair(folder)
	if err == nil && auth.Current(pair.Leaf, now) {
		return nil
	}
	return c.certify(folder, ca, now)
}

func loadPair(folder string) (tls.Certificate, error) {
	return tls.LoadX509KeyPair(filepath.Join(folder, peerFile), filepath.Join(folder, peerKeyFile))
}

// renewEvery is how often stayCertified looks at the certificate.
const renewEvery = 2 * time.Second

// stayCertified renews this member's certificate until ctx ends.
func (c config) stayCertified(ctx context.Context, folder string, ca *auth.CA, log *slog.Logger) {
	if c.Member == nil {
		return
	}
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.renewCertificate(folder, ca, time.Now()); err != nil {
			log.Warn("this server's certificate for the others is not renewed yet", "error", err)
		}
	}
}

// storeFirst writes the first records of a fleet into a file, from which the first server that has a
// quorum writes them into the store. They have hashes of tokens only.
func storeFirst(ctx context.Context, folder string, make func(store.Store) error) error {
	s := memory.New(memory.Options{})
	if err := make(s); err != nil {
		return err
	}
	records, _, err := s.List(ctx, store.All)
	if err != nil {
		return err
	}
	data, err := json.Marshal(records)
	if err != nil {
		return fmt.Errorf("encoding the first records: %w", err)
	}
	return write(folder, firstFile, append(data, '\n'), secretMode)
}

// writeFirst writes the first records, unless the store has them or the folder has none.
func writeFirst(ctx context.Context, s store.Store, folder string) error {
	path := filepath.Join(folder, firstFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var records []store.Record
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil {
		return fmt.Errorf("reading the first records of the fleet in %s: %w", path, err)
	}
	var t store.Txn
	for _, r := range records {
		t.If = append(t.If, store.Condition{Key: r.Key})
		t.Put = append(t.Put, store.Put{Key: r.Key, Value: r.Value})
	}
	var conflict *store.ConflictError
	if _, err := s.Commit(ctx, t); err != nil && !errors.As(err, &conflict) { // another server was faster
		return fmt.Errorf("writing the first records of the fleet: %w", err)
	}
	return os.Remove(path)
}
