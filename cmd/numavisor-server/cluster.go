package main

import (
	"context"
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
	at, err := url.Parse(own)
	if err != nil {
		return out, fmt.Errorf("the members in %s: %w", configFile, err)
	}
	certificate, key, err := ca.MemberPEM([]string{at.Hostname()}, time.Now())
	if err != nil {
		return out, err
	}
	return out, errors.Join(write(folder, peerFile, certificate, publicMode),
		write(folder, peerKeyFile, key, secretMode))
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
