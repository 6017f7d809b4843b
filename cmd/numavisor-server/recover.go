package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/server"
)

// openLimit is how long a server of several may wait for the others.
const openLimit = time.Minute

func recoverAdminCommand() *cobra.Command {
	var folder, name string
	c := &cobra.Command{
		Use:   "recover-admin",
		Short: "Make a token for an admin after all of them were lost or have expired",
		Long: `Makes a token for an admin in the data folder of a server that does not run, and prints it
once. It is for a fleet whose admins have no valid token any more; else 'numavisor token create' makes
one. The audit has the act. Other tokens stay valid: revoke those that others may have found.

If the fleet has several servers, stop one of them and run the command there.`,
		Example: `  numavisor-server recover-admin --data /var/lib/numavisor-server`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			token, err := recoverAdmin(c.Context(), folder, name)
			if err == nil {
				_, err = fmt.Fprintf(c.OutOrStdout(), "Token of user %s:\n  %s\n\nStart the server:\n"+
					"  numavisor-server --data %s\n", name, token, folder)
			}
			return err
		},
	}
	c.Flags().StringVar(&folder, "data", defaultData, "folder of the server's data")
	c.Flags().StringVar(&name, "user", "admin", "the admin, or a user who does not exist yet")
	return c
}

// errServerRuns means that the records belong to a running server.
var errServerRuns = errors.New("its server runs: stop it first; with a valid token of an admin, " +
	"'numavisor token create' needs no stop")

// recoverAdmin makes the token.
func recoverAdmin(ctx context.Context, folder, name string) (token string, err error) {
	conf, err := readConfig(folder)
	if err != nil {
		return "", err
	}
	ca, err := readCA(folder)
	if err != nil {
		return "", err
	}
	if c, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(folder, socketFile)); err == nil {
		_ = c.Close() // nothing was sent
		return "", fmt.Errorf("%s: %w", folder, errServerRuns)
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	records, err := openStore(ctx, folder, conf, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	token, err = server.RecoverAdmin(ctx, records, name, time.Now())
	return token, errors.Join(err, records.Close())
}
