package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/claim"
)

// serverData is the folder of the server's records unless the operator names another.
const serverData = "/var/lib/numavisor-server"

func upCommand() *cobra.Command {
	var address, folder, records, socket, state, migrationURI string
	var images []string
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the server of a fleet and the daemon of this host together",
		Long: `Makes a fleet on this machine if there is none, starts its server, and starts the
daemon of this host, which joins the fleet. Nothing else need be installed. The first
start prints the token of the user 'admin' and how users reach the server.

Runs in the foreground until it receives SIGTERM; then both end. If one of them ends,
the other is stopped.`,
		Example: "  numavisor up\n  numavisor up --address fleet.example.org:8443",
		Args:    takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			server, err := findServer()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			join, err := firstFleet(c, server, folder, address)
			if err != nil {
				return err
			}
			args := append([]string{"daemon", "--records", records, "--socket", socket, "--state", state}, join...)
			if migrationURI != "" {
				args = append(args, "--migration-uri", migrationURI)
			}
			for _, i := range images {
				args = append(args, "--images", i)
			}
			group, ctx := errgroup.WithContext(c.Context())
			group.Go(func() error { return part(ctx, c, server, "--data", folder) })
			group.Go(func() error {
				if err := awaitServer(ctx, address); err != nil {
					return err
				}
				return part(ctx, c, self, args...)
			})
			return group.Wait()
		},
	}
	f := c.Flags()
	f.StringVar(&address, "address", "localhost:8443", "what hosts and users connect to: HOST:PORT")
	f.StringVar(&folder, "data", serverData, "folder of the server's data")
	recordsFlag(f, &records)
	f.StringVar(&state, "state", claim.DefaultFolder, "folder for reservations of commands in progress")
	socketFlag(c, &socket)
	memberFlags(f, &migrationURI, &images)
	return c
}

// firstFleet makes a fleet if the folder has none. It returns the daemon's flags to join it; none if
// the fleet existed before. The one-time token is in a file, because any user can read the arguments
// of a process.
func firstFleet(c *cobra.Command, server, folder, address string) ([]string, error) {
	path := filepath.Join(folder, "first-join.json")
	if _, err := os.Stat(filepath.Join(folder, "server.json")); errors.Is(err, fs.ErrNotExist) {
		err := part(c.Context(), c, server, "init", "--data", folder, "--address", address, "--join-file", path)
		if err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []string{"--join-file", path}, nil
}

// awaitServer waits until a server listens.
func awaitServer(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server at %s: %w", address, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// part runs a program until it ends, or ctx ends and the program with it.
func part(ctx context.Context, c *cobra.Command, program string, args ...string) error {
	p := exec.CommandContext(ctx, program, args...)
	p.Stdout, p.Stderr = c.OutOrStdout(), c.ErrOrStderr()
	p.Cancel = func() error { return p.Process.Signal(unix.SIGTERM) }
	p.WaitDelay = time.Minute
	err := p.Run()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the program was stopped
	}
	if err == nil && args[0] != "init" {
		err = errors.New("it ended")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return nil
}
