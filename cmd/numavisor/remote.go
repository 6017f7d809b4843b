package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/host/lock"
	"github.com/numavisor/numavisor/internal/strictyaml"
)

// The environment variables of the fleet's client.
const (
	serverVariable = "NUMAVISOR_SERVER"
	tokenVariable  = "NUMAVISOR_TOKEN" //nolint:gosec // the name of a variable
	caVariable     = "NUMAVISOR_CA"
)

// thisHost is the value of --server for the host of the command.
const thisHost = "local"

// clientConfig is ~/.config/numavisor/config.yaml.
type clientConfig struct {
	// Current is the context of commands without --server; empty: they act on this host.
	Current  string          `json:"current,omitempty"`
	Contexts []clientContext `json:"contexts,omitempty"`
}

// clientContext says how to reach a fleet's server.
type clientContext struct {
	Name   string `json:"name"`
	Server string `json:"server"` // https://HOST:PORT
	// Token is the user's token, else TokenFile has it.
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	// CA is the file of the CA of the fleet's servers; empty: those of the system.
	CA string `json:"ca,omitempty"`
}

// Validate returns an error if the file cannot be used.
func (c *clientConfig) Validate() error {
	var names []string
	for i := range c.Contexts {
		x := &c.Contexts[i]
		field := fmt.Sprintf("contexts[%d].", i)
		switch {
		case x.Name == "" || x.Name == thisHost || slices.Contains(names, x.Name):
			return &strictyaml.FieldError{Field: field + "name", Value: x.Name,
				Allowed: "a name of its own, not " + thisHost}
		case x.Server == "":
			return &strictyaml.FieldError{Field: field + "server", Value: "", Allowed: "https://HOST:PORT"}
		}
		names = append(names, x.Name)
	}
	if c.Current != "" && c.Current != thisHost && !slices.Contains(names, c.Current) {
		return &strictyaml.FieldError{Field: "current", Value: c.Current, Allowed: strings.Join(names, ", ")}
	}
	return nil
}

// configFile is the path of the client's configuration.
func configFile() (string, error) {
	folder, err := os.UserConfigDir()
	return filepath.Join(folder, "numavisor", "config.yaml"), err
}

// readClientConfig reads the configuration; a missing file is an empty one.
func readClientConfig() (clientConfig, string, error) {
	var c clientConfig
	path, err := configFile()
	if err != nil {
		return c, path, nil // without a home folder there is no configuration
	}
	file, _, err := lock.OpenRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, path, nil
	case err != nil:
		return c, path, err
	}
	defer func() { _ = file.Close() }()
	_, err = strictyaml.Decode(file, strictyaml.Format{Kind: path, MaxBytes: 1 << 20}, &c, c.Validate)
	if err != nil {
		return c, path, usageError{err}
	}
	return c, path, nil
}

// remote is where a command acts: on this host or on a fleet.
type remote struct{ server string }

// flag defines --server.
func (r *remote) flag(c *cobra.Command) {
	c.Flags().StringVar(&r.server, "server", "",
		"act on the fleet of this server: URL, or name of a context; 'local': on this host")
}

// context returns the server that is meant; nil: this host.
func (r *remote) context() (*clientContext, error) {
	asked := cmp.Or(r.server, os.Getenv(serverVariable))
	config, path, err := readClientConfig()
	if err != nil {
		return nil, err
	}
	asked = cmp.Or(asked, config.Current)
	if asked == "" || asked == thisHost {
		return nil, nil //nolint:nilnil // this host is no context
	}
	var x clientContext
	if i := slices.IndexFunc(config.Contexts, func(x clientContext) bool { return x.Name == asked }); i >= 0 {
		x = config.Contexts[i]
	} else if strings.Contains(asked, ":") {
		x.Server = asked
		if !strings.Contains(asked, "://") {
			x.Server = "https://" + asked
		}
	} else {
		return nil, wrongUse("--server %q: neither a URL nor a context of %s", asked, path)
	}
	x.Token, x.CA = cmp.Or(os.Getenv(tokenVariable), x.Token), cmp.Or(os.Getenv(caVariable), x.CA)
	if x.Token == "" && x.TokenFile != "" {
		data, err := os.ReadFile(x.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("the token of server %s: %w", x.Server, err)
		}
		x.Token = strings.TrimSpace(string(data))
	}
	return &x, nil
}

// client returns a client of the fleet's server; nil: the command acts on this host. Flags other
// than those given have an effect only there.
func (r *remote) client(c *cobra.Command, works ...string) (*fleetapi.Client, error) {
	x, err := r.context()
	if x == nil || err != nil {
		return nil, err
	}
	if f := changedOtherThan(c, append(works, "server", "output")...); f != "" {
		return nil, wrongUse("--%s works only on this host: add --server %s, or leave it out", f, thisHost)
	}
	config := fleetapi.Config{URL: x.Server, Token: x.Token}
	if x.CA != "" {
		if config.CA, err = os.ReadFile(x.CA); err != nil {
			return nil, fmt.Errorf("the CA of server %s: %w", x.Server, err)
		}
	}
	said := false
	config.Old = func(age time.Duration) {
		if !said {
			fmt.Fprintf(c.ErrOrStderr(), "note: the records may be old: the server could not confirm them for %v, "+
				"since it does not reach enough of the others\n", age)
		}
		said = true
	}
	client, err := fleetapi.NewClient(config)
	if err != nil {
		return nil, usageError{err}
	}
	return client, nil
}

// errorOr returns an error, or does something if there is none.
func errorOr(err error, do func() error) error {
	if err != nil {
		return err
	}
	return do()
}

// fleet returns a client, for commands that act on fleets only.
func (r *remote) fleet(c *cobra.Command, works ...string) (*fleetapi.Client, error) {
	client, err := r.client(c, works...)
	if client == nil && err == nil {
		return nil, wrongUse("%s acts on a fleet: name its server with --server, %s or a current context",
			c.CommandPath(), serverVariable)
	}
	return client, err
}

// isRemote says, before a command runs, whether it acts on a fleet.
func isRemote(c *cobra.Command) bool {
	f := c.Flags().Lookup("server")
	if f == nil {
		return false
	}
	x, err := (&remote{server: f.Value.String()}).context()
	return err != nil || x != nil
}

// changedOtherThan returns a flag that is on the command line and not in the list; empty: none.
func changedOtherThan(c *cobra.Command, allowed ...string) string {
	other := ""
	c.Flags().Visit(func(f *pflag.Flag) {
		if other == "" && !slices.Contains(allowed, f.Name) {
			other = f.Name
		}
	})
	return other
}

// awaitVM waits until a VM of a fleet is as wanted, or ctx ends.
func awaitVM(
	ctx context.Context, client *fleetapi.Client, name string, until func(*fleetapi.VM) bool,
) (fleetapi.VM, error) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		vm, err := client.VM(ctx, name)
		if err != nil || until(&vm) {
			return vm, err
		}
		select {
		case <-ctx.Done():
			return vm, fmt.Errorf("VM %s is %s: %w; 'numavisor show %[1]s' shows it", name, vm.State, ctx.Err())
		case <-tick.C:
		}
	}
}
