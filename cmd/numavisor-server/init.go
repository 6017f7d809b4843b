package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/server"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

// joinTime is how long the first host may take to join.
const joinTime = time.Hour

// newServer is what the flags of 'init' ask for.
type newServer struct {
	folder, joinFile, from string
	caCert, caKey          string
	config
	member
	cluster
}

func initCommand() *cobra.Command {
	var n newServer
	c := &cobra.Command{
		Use:   "init --address HOST:PORT",
		Short: "Make a new fleet: its records, its CA, the first user and a token for the first host",
		Long: `Makes the data folder of a new fleet: the records (etcd), a CA that signs the
certificates of servers and hosts, the user 'admin' with a token, the project
'default', and a one-time token with which the first host joins within an hour.

The two tokens are printed once and cannot be shown again.

With --member and --peer, the server is one of several. Each has a copy of the
records, and the fleet works as long as more than half of them run and reach each
other. Make the first one's folder, copy ca.pem, ca.key, server.json and first.json
from it to the machines of the others, and make theirs with --from. The other way is
a cluster of etcd that you run: name it by --etcd; all servers use it.

With --ca-cert and --ca-key, the fleet's CA is one of your PKI: an intermediate CA for
this fleet alone, since every certificate of a client that it signs is that of a host.
Users who trust the PKI's root need no other CA then.`,
		Example: `  numavisor-server init --address fleet.example.org:8443
  numavisor-server init --address a.example.org:8443 --member a \
    --peer a=https://10.0.0.1:2380,b=https://10.0.0.2:2380,c=https://10.0.0.3:2380
  numavisor-server init --address b.example.org:8443 --member b --from copied-files`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := n.check(); err != nil {
				return usageError{err}
			}
			if n.from != "" {
				return addServer(c.OutOrStdout(), n)
			}
			ca, err := n.ownCA(time.Now())
			if err != nil {
				return usageError{err}
			}
			return makeFleet(c.Context(), c.OutOrStdout(), n.folder, n.joinFile, n.config, ca)
		},
	}
	f := c.Flags()
	f.StringVar(&n.folder, "data", defaultData, "folder of the server's data")
	f.StringVar(&n.Address, "address", "", "what hosts and users connect to: HOST:PORT")
	f.StringVar(&n.joinFile, "join-file", "",
		"also write what the first host needs to this file, for 'numavisor daemon --join-file'")
	f.StringVar(&n.caCert, "ca-cert", "", "file with the certificate of a CA to use, PEM (default: a new CA)")
	f.StringVar(&n.caKey, "ca-key", "", "file with the key of --ca-cert, PEM")
	f.StringSliceVar(&n.Names, "name", nil,
		"another name or address of the server, for its certificate; may be repeated")
	f.StringVar(&n.Name, "member", "", "name of this server among several")
	f.StringToStringVar(&n.Members, "peer", nil,
		"NAME=https://HOST:PORT of each server, this one included; may be repeated")
	f.StringVar(&n.Listen, "peer-listen", "", "URL to listen on for the other servers (default: the one of --peer)")
	f.StringVar(&n.from, "from", "", "folder with the files of the first server, to make another one of the same fleet")
	f.StringSliceVar(&n.Endpoints, "etcd", nil, "URL of a cluster of etcd to use instead of one's own; may be repeated")
	f.StringVar(&n.CA, "etcd-ca", "", "file with the CA of --etcd, PEM")
	f.StringVar(&n.Certificate, "etcd-cert", "", "file with this server's certificate for --etcd, PEM")
	f.StringVar(&n.Key, "etcd-key", "", "file with the key of --etcd-cert, PEM")
	f.StringVar(&n.User, "etcd-user", "", "user of etcd")
	f.StringVar(&n.PasswordFile, "etcd-password-file", "", "file with the password of --etcd-user")
	return c
}

// check completes and checks the flags.
func (n *newServer) check() error {
	host, _, err := net.SplitHostPort(n.Address)
	if err != nil || host == "" {
		return fmt.Errorf("--address %q: give what hosts and users connect to, such as fleet.example.org:8443",
			n.Address)
	}
	if n.from != "" {
		first, err := readConfig(n.from)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		if n.Etcd = first.Etcd; first.Member != nil {
			n.Members = first.Member.Members
		} else if first.Etcd == nil {
			return fmt.Errorf("--from %s: that server is the only one of its fleet; make it with --member and --peer",
				n.from)
		}
	}
	if len(n.Members) > 0 || n.Name != "" {
		if n.Members[n.Name] == "" {
			return fmt.Errorf("--member %q: not among the names of --peer", n.Name)
		}
		n.Member = &n.member
	}
	if len(n.Endpoints) > 0 {
		n.Etcd = &n.cluster
	}
	if n.Member != nil && n.Etcd != nil {
		return errors.New("both --peer and --etcd: choose one")
	}
	return nil
}

// ownCA returns the CA of --ca-cert, or a new one.
func (n *newServer) ownCA(now time.Time) (*auth.CA, error) {
	if n.caCert == "" && n.caKey == "" {
		return auth.NewCA("Numavisor fleet at "+n.Address, now)
	}
	certificate, err := os.ReadFile(n.caCert)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	key, err := os.ReadFile(n.caKey)
	if err != nil {
		return nil, fmt.Errorf("--ca-key: %w", err)
	}
	ca, err := auth.ParseCA(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert and --ca-key: %w", err)
	}
	if c := ca.Certificate; now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return nil, fmt.Errorf("--ca-cert: valid from %s to %s only", c.NotBefore.Format(time.DateOnly),
			c.NotAfter.Format(time.DateOnly))
	}
	return ca, nil
}

// addServer makes the data folder of another server of a fleet.
func addServer(out io.Writer, n newServer) error {
	if err := os.MkdirAll(n.folder, folderModes); err != nil {
		return fmt.Errorf("making the data folder: %w", err)
	}
	if err := isNew(n.folder); err != nil {
		return err
	}
	for _, file := range []struct {
		name  string
		mode  fs.FileMode
		needs bool
	}{{caFile, publicMode, true}, {caKeyFile, secretMode, true}, {firstFile, secretMode, false}} {
		data, err := os.ReadFile(filepath.Join(n.from, file.name))
		if errors.Is(err, fs.ErrNotExist) && !file.needs {
			continue // the first server has written these records
		}
		if err == nil {
			err = write(n.folder, file.name, data, file.mode)
		}
		if err != nil {
			return fmt.Errorf("copying the files of the first server: %w", err)
		}
	}
	if err := writeConfig(n.folder, n.config); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "Made another server of the fleet in %s.\n\nStart it:\n  numavisor-server --data %s\n",
		n.folder, n.folder)
	return err
}

// isNew refuses a folder that has a server.
func isNew(folder string) error {
	if _, err := os.Stat(filepath.Join(folder, configFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has a fleet already: start it with 'numavisor-server --data %s'", folder, folder)
	}
	return nil
}

// writeConfig writes what readConfig reads.
func writeConfig(folder string, c config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return write(folder, configFile, append(data, '\n'), publicMode)
}

// makeFleet makes the data folder, and prints how to go on.
func makeFleet(ctx context.Context, out io.Writer, folder, joinFile string, c config, ca *auth.CA) error {
	if err := os.MkdirAll(folder, folderModes); err != nil {
		return fmt.Errorf("making the data folder: %w", err)
	}
	if err := isNew(folder); err != nil {
		return err
	}
	certificate, key, err := ca.PEM()
	if err != nil {
		return err
	}
	if err := errors.Join(write(folder, caFile, certificate, publicMode), write(folder, caKeyFile, key,
		secretMode)); err != nil {
		return err
	}
	admin, join, err := firstTokens(ctx, folder, c, ca)
	if err != nil {
		return err
	}
	if joinFile != "" {
		data, err := json.Marshal(fleetapi.NewJoin{Token: join, Expires: time.Now().Add(joinTime).UTC(),
			Fingerprint: ca.Fingerprint(), Address: c.Address})
		if err == nil {
			err = os.WriteFile(joinFile, data, secretMode)
		}
		if err != nil {
			return fmt.Errorf("writing the file for the first host: %w", err)
		}
	}
	if err := writeConfig(folder, c); err != nil { // the last: init is done
		return err
	}
	_, err = fmt.Fprintf(out, `Made a fleet in %s.

Start its server:
  numavisor-server --data %s

Token of user admin:
  %s

Let the first host join, within an hour:
  %s

Users need the CA of the server:
  %s
`, folder, folder, admin, server.JoinCommand(c.Address, ca.Fingerprint(), join), filepath.Join(folder, caFile))
	return err
}

// firstTokens makes the first user, and a token for the first host.
func firstTokens(ctx context.Context, folder string, c config, ca *auth.CA) (admin, join string, err error) {
	first := func(s store.Store) (err error) {
		if admin, err = server.FirstAdmin(ctx, s, time.Now()); err != nil {
			return err
		}
		if admin == "" {
			return errors.New("there are the records of a fleet already: remove them to begin again")
		}
		join, err = server.FirstJoin(ctx, s, time.Now().Add(joinTime))
		return err
	}
	if c.Member != nil { // one server of several cannot write
		err = storeFirst(ctx, folder, first)
		return admin, join, err
	}
	s, err := openStore(ctx, folder, c, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	err = first(s)
	return admin, join, err
}
