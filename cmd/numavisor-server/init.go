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
)

// joinTime is how long the first host may take to join.
const joinTime = time.Hour

func initCommand() *cobra.Command {
	var folder, address, joinFile string
	var names []string
	c := &cobra.Command{
		Use:   "init --address HOST:PORT",
		Short: "Make a new fleet: its records, its CA, the first user and a token for the first host",
		Long: `Makes the data folder of a new fleet: the records (etcd), a CA that signs the
certificates of servers and hosts, the user 'admin' with a token, the project
'default', and a one-time token with which the first host joins within an hour.

The two tokens are printed once and cannot be shown again.`,
		Example: `  numavisor-server init --address fleet.example.org:8443`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			host, _, err := net.SplitHostPort(address)
			if err != nil || host == "" {
				return usageError{fmt.Errorf(
					"--address %q: give what hosts and users connect to, such as fleet.example.org:8443", address)}
			}
			return makeFleet(c.Context(), c.OutOrStdout(), folder, joinFile, config{Address: address, Names: names})
		},
	}
	c.Flags().StringVar(&folder, "data", defaultData, "folder of the server's data")
	c.Flags().StringVar(&address, "address", "", "what hosts and users connect to: HOST:PORT")
	c.Flags().StringVar(&joinFile, "join-file", "", "also write what the first host needs to this file, for 'numavisor daemon --join-file'")
	c.Flags().StringSliceVar(&names, "name", nil,
		"another name or address of the server, for its certificate; may be repeated")
	return c
}

// makeFleet makes the data folder, and prints how to go on.
func makeFleet(ctx context.Context, out io.Writer, folder, joinFile string, c config) error {
	if err := os.MkdirAll(folder, folderModes); err != nil {
		return fmt.Errorf("making the data folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(folder, configFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has a fleet already: start it with 'numavisor-server --data %s'", folder, folder)
	}
	ca, err := auth.NewCA("Numavisor fleet at "+c.Address, time.Now())
	if err != nil {
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
	admin, join, err := firstTokens(ctx, folder)
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
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := write(folder, configFile, append(data, '\n'), publicMode); err != nil { // the last: init is done
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
func firstTokens(ctx context.Context, folder string) (admin, join string, err error) {
	s, err := openStore(ctx, folder, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if admin, err = server.FirstAdmin(ctx, s, time.Now()); err != nil {
		return "", "", err
	}
	if admin == "" {
		return "", "", fmt.Errorf("%s has the records of a fleet already: remove the folder to begin again", folder)
	}
	join, err = server.FirstJoin(ctx, s, time.Now().Add(joinTime))
	return admin, join, err
}
