package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
)

// Files of the data folder.
const (
	caFile       = "ca.pem"
	caKeyFile    = "ca.key"
	configFile   = "server.json"
	etcdFolder   = "etcd"
	seriesFolder = "series"
	secretMode   = 0o600
	publicMode   = 0o644
	folderModes  = 0o700
	firstFile    = "first.json"
	peerFile     = "member.pem"
	peerKeyFile  = "member.key"
)

// config is what 'init' decides for each start of the server.
type config struct {
	// Address is what hosts and users connect to: HOST:PORT.
	Address string `json:"address"`
	// Names are further names and addresses in the server's certificate.
	Names []string `json:"names,omitempty"`
	// Member is set if this server is one of several, Etcd if others run the cluster of etcd.
	Member *member  `json:"member,omitempty"`
	Etcd   *cluster `json:"etcd,omitempty"`
}

func write(folder, name string, data []byte, mode fs.FileMode) error {
	path := filepath.Join(folder, name)
	err := renameio.WriteFile(path, data, mode, renameio.WithTempDir(folder), renameio.WithStaticPermissions(mode))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// readConfig reads what 'init' has decided.
func readConfig(folder string) (config, error) {
	path := filepath.Join(folder, configFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, fmt.Errorf("%s has no server yet: run 'numavisor-server init' first", folder)
	}
	if err != nil {
		return config{}, fmt.Errorf("reading the server's configuration: %w", err)
	}
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return config{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return c, nil
}

func readCA(folder string) (*auth.CA, error) {
	certificate, err := os.ReadFile(filepath.Join(folder, caFile))
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(folder, caKeyFile))
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	return auth.ParseCA(certificate, key)
}

// openStore opens the records of the data folder, and writes the first ones of a new fleet. Callers close
// them.
func openStore(ctx context.Context, folder string, c config, ca *auth.CA, log *slog.Logger) (*etcd.Store, error) {
	where, err := c.records(folder, ca, log)
	if err != nil {
		return nil, err
	}
	if c.Member != nil {
		log.Info("waiting for more than half of the servers", "of", len(c.Member.Members))
	}
	s, err := etcd.Open(ctx, where)
	if err != nil {
		return nil, fmt.Errorf("opening the records: %w", err)
	}
	if err := prepare(ctx, s, folder); err != nil {
		_ = s.Close() // the first error counts
		return nil, err
	}
	return s, nil
}

// prepareTime is how long a server that starts waits for a store that cannot be written: the other servers may start,
// too, and choose who writes.
const prepareTime = time.Minute

// prepare brings the records to the schema of this program, and writes the first ones of a new fleet.
func prepare(ctx context.Context, s store.Store, folder string) error {
	for began := time.Now(); ; {
		err := store.Prepare(ctx, s)
		if err == nil {
			err = writeFirst(ctx, s, folder)
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Since(began) > prepareTime {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
