package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/alarm"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
)

// membership are the daemon's flags about its fleet.
type membership struct {
	server, token, fingerprint, file, name, rack string
	migrationURI                                 string
	images                                       []string
	leave                                        bool
}

func (m *membership) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&m.server, "join", "", "join the fleet of this server, HOST:PORT")
	f.StringVar(&m.token, "token", "", "with --join: one-time token")
	f.StringVar(&m.fingerprint, "ca-fingerprint", "", "with --join: fingerprint of the fleet's CA, sha256:HEX")
	f.StringVar(&m.file, "join-file", "",
		"join a fleet with the file that 'numavisor server init --join-file' wrote: address, token and fingerprint")
	f.StringVar(&m.name, "host-name", "", "with --join: name of this host in the fleet (default: its host name)")
	f.StringVar(&m.rack, "rack", "", "with --join: hosts of one rack fail together")
	f.BoolVar(&m.leave, "leave", false, "end the membership of a fleet, and exit; VMs run on")
	exclusive(c, "join", "leave", "join-file")
	exclusive(c, "join-file", "token")
	exclusive(c, "join-file", "ca-fingerprint")
	memberFlags(f, &m.migrationURI, &m.images)
}

// memberFlags are the flags about a host's part in its fleet.
func memberFlags(f *pflag.FlagSet, migrationURI *string, images *[]string) {
	f.StringVar(migrationURI, "migration-uri", "",
		"in a fleet: URI by which other hosts reach this one's hypervisor (default qemu+tls://HOST/system, on Xen "+
			"xl+ssh://HOST)")
	f.StringArrayVar(images, "images", nil,
		"folder in which the files of the fleet's VMs may be; may be repeated (default "+local.DefaultImages+
			", on Xen "+local.XenImages+")")
}

// fleetFolder is the folder of the membership below that of the records.
func fleetFolder(records string) string { return filepath.Join(records, "fleet") }

// fleetPart is a host's part in a fleet.
type fleetPart struct {
	run func(context.Context, *daemon.Daemon) error
	has func(vm string) bool // reports whether a VM is the fleet's; nil: the host is in no fleet
}

// agent adds the part in the fleet to a daemon's options, and returns it. It does nothing
// if this host is in no fleet. The first start with --join joins.
func (m *membership) agent(ctx context.Context, h *local.Host, o *daemon.Options) (in fleetPart, err error) {
	folder := fleetFolder(o.Records)
	of, err := agent.LoadMember(folder)
	switch {
	case err != nil && !errors.Is(err, agent.ErrNotMember):
		return in, err
	case err != nil && m.server == "" && m.file == "":
		in.run = func(context.Context, *daemon.Daemon) error { return nil }
		return in, nil
	case err != nil:
		if of, err = m.join(ctx, h, folder); err != nil {
			return in, err
		}
	case m.server != "" || m.file != "": // a restart with the same command line
		o.Log.Info("this host has joined a fleet already: --join and --join-file have no effect",
			"server", of.Server, "as", of.Host)
	}
	host := h.Host.Host
	host.Journal, host.By = o.Journal, "fleet"
	var d *daemon.Daemon // set before the agent runs
	p := agent.Options{Member: of, Folder: folder, Host: &host, Machines: h.Machines(m.images),
		Loads:  func(ctx context.Context) (inventory.Host, error) { return d.Inventory(ctx) },
		Alarms: func(ctx context.Context) ([]alarm.Alarm, error) { return lastingAlarms(ctx, d) },
		Roster: o.Roster, Program: thisBuild().Version, Log: o.Log}
	if p.Boot, err = linux.Live.BootID(); err != nil {
		return in, err
	}
	if h.Xen != nil {
		p.Look = o.Look
	}
	part, err := m.migrations(h, &host, of.Host)
	if err != nil {
		return in, err
	}
	p.Migrations = part
	a := agent.New(p)
	o.Fleet = a.Status
	in.has = a.Has
	in.run = func(ctx context.Context, made *daemon.Daemon) error {
		d = made
		if err := part.Recover(ctx); err != nil {
			o.Log.Warn("interrupted migrations are not settled yet", "error", err)
		}
		return a.Run(ctx)
	}
	return in, nil
}

// migrations is this host's part in the migrations of its fleet.
func (m *membership) migrations(h *local.Host, acts *operate.Host, name string) (*migrate.Host, error) {
	uri := m.migrationURI
	if uri == "" {
		at, err := h.Sources.HostName()
		if err != nil {
			return nil, fmt.Errorf("the name by which other hosts reach this one: %w; give --migration-uri", err)
		}
		uri = h.MigrationURI(at)
	}
	if h.Xen != nil {
		if err := xen.CheckMigrationURI(uri); err != nil {
			return nil, wrongUse("--migration-uri: %v", err)
		}
	}
	part := h.Migrations(name, uri, h.Machines(m.images))
	part.Host = acts
	return part, nil
}

// join joins the fleet that the flags name.
func (m *membership) join(ctx context.Context, h *local.Host, folder string) (*agent.Member, error) {
	if m.file != "" {
		if err := m.readJoinFile(); err != nil {
			return nil, err
		}
	}
	if m.token == "" || m.fingerprint == "" {
		return nil, wrongUse("--join needs --token and --ca-fingerprint: the fleet's administrator gives both")
	}
	name, err := h.Sources.HostName()
	if err != nil && m.name == "" {
		return nil, fmt.Errorf("the name of this host: %w; give --host-name", err)
	}
	id, err := h.Sources.HostID()
	if err != nil {
		return nil, fmt.Errorf("the identity of this machine: %w", err)
	}
	name = cmp.Or(m.name, name)
	return agent.Join(ctx, folder, agent.JoinRequest{Server: m.server, Token: m.token, Fingerprint: m.fingerprint,
		Host: name, ID: id, Rack: m.rack})
}

// readJoinFile takes the server's address, the token and the fingerprint from the file that
// --join-file names.
func (m *membership) readJoinFile() error {
	data, err := os.ReadFile(m.file)
	if err != nil {
		return fmt.Errorf("--join-file: %w", err)
	}
	var j fleetapi.NewJoin
	if err := json.Unmarshal(data, &j); err != nil {
		return wrongUse("--join-file %s: %v", m.file, err)
	}
	if j.Address == "" || j.Token == "" || j.Fingerprint == "" {
		return wrongUse("--join-file %s: address, token or fingerprint is missing: "+
			"give the file that 'numavisor server init --join-file' wrote", m.file)
	}
	m.server, m.token, m.fingerprint = j.Address, j.Token, j.Fingerprint
	return nil
}

// lastingAlarms returns the alarms that last.
func lastingAlarms(ctx context.Context, d *daemon.Daemon) ([]alarm.Alarm, error) {
	s, err := d.Status(ctx)
	return s.Alarms, err
}

// leaveFleet ends the membership, while no daemon uses it.
func leaveFleet(c *cobra.Command, records string) error {
	held, err := record.Hold(records)
	if err != nil {
		return err
	}
	defer func() { _ = held.Close() }() // nothing is written any more
	if err := agent.Leave(fleetFolder(records)); err != nil {
		return err
	}
	return said(c, "left", "this host takes part in no fleet; remove it there, too")
}
