package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// serverProgram is the program of the fleet's server: it links etcd, which a daemon need not load.
const serverProgram = "numavisor-server"

func serverCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "server [init | backup | restore] [flags]",
		DisableFlagParsing: true,
		Short:              "Serve a fleet of hosts ('server init' makes one)",
		Long: `Runs the program numavisor-server with the same arguments: the one in the folder of
this program, else in PATH. It serves a REST API, chooses hosts and nodes for VMs,
and commands the daemons of the hosts ('numavisor daemon --join').`,
		Example: `  numavisor server init --address fleet.example.org:8443
  numavisor server
  numavisor server backup /backup/fleet.tar`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return c.Help()
			}
			path, err := findServer()
			if err != nil {
				return err
			}
			err = unix.Exec(path, append([]string{serverProgram}, args...), os.Environ())
			return fmt.Errorf("starting %s: %w", path, err)
		},
	}
}

// findServer returns the path of the server's program.
func findServer() (string, error) {
	if self, err := os.Executable(); err == nil {
		near := filepath.Join(filepath.Dir(self), serverProgram)
		if info, err := os.Stat(near); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return near, nil
		}
	}
	path, err := exec.LookPath(serverProgram)
	if err != nil {
		return "", fmt.Errorf("no program %s in the folder of this one or in PATH: install it", serverProgram)
	}
	return path, nil
}
