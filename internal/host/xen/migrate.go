package xen

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
)

// The functions of this file implement migrate.Port: a host's part in the migrations of its fleet. `xl migrate` runs on
// the source, and reaches the target by ssh; the daemons of both hosts ask xl what is true.

// uriScheme begins the URIs by which xl reaches other hosts.
const uriScheme = "xl+ssh"

// MigrationURI returns the URI by which other hosts reach a host of a name.
func MigrationURI(host string) string { return uriScheme + "://" + host }

// CheckMigrationURI refuses a URI by which xl reaches no host.
func CheckMigrationURI(uri string) error {
	_, err := New(nil).routeTo(uri)
	return err
}

// routeTo returns the way that a URI names. The command is always ssh: the URI comes from the other host, which must
// not choose what runs here.
func (d *Driver) routeTo(uri string) (*Route, error) {
	u, err := url.Parse(uri)
	if err == nil && (u.Scheme != uriScheme || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" || u.Fragment != "") {
		err = errors.New("it has another form")
	}
	if err != nil {
		return nil, fmt.Errorf("migration URI %q: %w; give %s://[USER@]HOST[:PORT]", uri, err, uriScheme)
	}
	transport, address := SSH, u.Hostname()
	if port := u.Port(); port != "" {
		transport += " -p " + port
	}
	if user := u.User.Username(); user != "" {
		address = user + "@" + address
	}
	return d.Route(address, transport)
}

// Migrate moves a running guest to another host by `xl migrate -C`. The configuration is the definition with which the
// fleet created the guest, or else computed from what xl reports.
//
// If ctx ends after xl has begun, Migrate returns at once, and xl continues: ending it could leave the guest suspended.
// After any error, Presence says what is true here.
func (d *Driver) Migrate(ctx context.Context, m guest.Departure) (guest.Transfer, error) {
	if err := migratesAs(m); err != nil {
		return guest.Transfer{}, fmt.Errorf("migrating VM %s: %w: %w", m.Name, guest.ErrRefused, err)
	}
	r, err := d.routeTo(m.URI)
	if err != nil {
		return guest.Transfer{}, err
	}
	if !d.leave(m.Name, true) {
		return guest.Transfer{}, fmt.Errorf("migrating VM %s: %w: an earlier migration of it has not ended", m.Name,
			guest.ErrRefused)
	}
	began, done := d.clock(), make(chan error, 1)
	go func() {
		err := r.migrate(ctx, m.Name, false, func(id int, uuid string) (string, error) {
			return d.departing(ctx, id, uuid, &m)
		})
		d.leave(m.Name, false) // before the caller looks
		done <- err
	}()
	select {
	case err = <-done:
		return guest.Transfer{Elapsed: d.clock().Sub(began)}, err
	case <-ctx.Done():
		return guest.Transfer{}, fmt.Errorf("migrating VM %s: %w; xl migrate, once begun, continues, since the VM "+
			"could stay suspended without it", m.Name, context.Cause(ctx))
	}
}

// migratesAs refuses options that xl does not have.
func migratesAs(m guest.Departure) error {
	switch {
	case m.PostCopy:
		return errors.New("xl has no post-copy: leave the option out")
	case m.CopyStorage:
		return errors.New("xl copies no disks: put them on storage that both hosts reach")
	case m.MaxDowntime > 0:
		return errors.New("xl does not limit how long the VM stops: leave the option out")
	}
	return nil
}

// leave notes that a migration begins or ends here; ok is false if one begins while another has not ended.
func (d *Driver) leave(name string, begins bool) (ok bool) {
	d.seen.Lock()
	defer d.seen.Unlock()
	if begins && d.leaving[name] {
		return false
	}
	if d.leaving == nil {
		d.leaving = map[string]bool{}
	}
	if d.leaving[name] = begins; !begins {
		delete(d.leaving, name)
	}
	return true
}

func (d *Driver) isLeaving(name string) bool {
	d.seen.Lock()
	defer d.seen.Unlock()
	return d.leaving[name]
}

// departing writes the configuration of a guest for its target into a file, which the caller removes.
func (d *Driver) departing(ctx context.Context, id int, uuid string, m *guest.Departure) (string, error) {
	out, err := d.xl(ctx, "list", "-l", strconv.Itoa(id))
	if err != nil {
		return "", err
	}
	configs, err := parseConfigs(out)
	if err != nil {
		return "", err
	}
	now := configs[id]
	switch {
	case len(now.Config.Build.VNUMA) > 0:
		err = errors.New("it has virtual NUMA nodes (vnuma), and Xen migrates no such VM")
	case len(now.Config.PCI) > 0:
		err = errors.New("a host device is assigned to it: detach it first")
	case len(m.Definition) > 0:
		err = isDefinitionOf(m.Definition, m.Name, uuid, &now)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", guest.ErrRefused, err)
	}
	if len(m.Definition) == 0 {
		return d.copyConfig(ctx, id, uuid, m.Name, &m.Intent.Placement, nil)
	}
	return writeConfig(m.Definition)
}

// isDefinitionOf refuses a definition of another VM, and one that lacks disks or network cards that the VM has now.
func isDefinitionOf(text []byte, name, uuid string, now *config) error {
	c, err := ParseConfig(text)
	if err != nil {
		return err
	}
	named, err := c.Name()
	id, _ := c.get("uuid")
	disks, _ := c.get("disk")
	cards, _ := c.get("vif")
	switch {
	case err != nil:
		return err
	case named != name || id.text != uuid:
		return fmt.Errorf("the fleet's record is of VM %s with UUID %s, and the VM here is %s with UUID %s", named,
			id.text, name, uuid)
	case len(disks.list) != len(now.Config.Disks) || len(cards.list) != len(now.Config.NICs):
		return fmt.Errorf("it has %d disks and %d network cards, and in the fleet's record %d and %d: detach what was "+
			"attached meanwhile", len(now.Config.Disks), len(now.Config.NICs), len(disks.list), len(cards.list))
	}
	return nil
}

// AbortMigration refuses: nothing ends `xl migrate` without the risk that the guest stays suspended.
func (d *Driver) AbortMigration(_ context.Context, name string) error {
	return fmt.Errorf("ending the migration of VM %s: %w: xl migrate cannot be ended safely; it ends by itself", name,
		guest.ErrRefused)
}

// Presence returns what this host has of a guest that migrates.
func (d *Driver) Presence(ctx context.Context, name string) (guest.Presence, error) {
	if d.isLeaving(name) {
		return guest.Departing, nil
	}
	programs, err := d.programs() // before the domains: what it migrates is then one of them, or has gone
	if err != nil {
		return guest.Absent, fmt.Errorf("looking for VM %s: running programs: %w", name, err)
	}
	here, err := d.remains(ctx, name)
	if err != nil {
		return guest.Absent, fmt.Errorf("looking for VM %s: %w", name, err)
	}
	return here.presence(programs), nil
}

// remains are the domains that a host has of a guest; nil: there is none.
type remains struct {
	name                string
	own, copied, behind *listed      // with its name, that of a copy, and that of what a migration leaves
	ids                 map[int]bool // of all domains
}

// presence says what the domains of a guest mean while these programs run.
func (r *remains) presence(programs []program) guest.Presence {
	for _, d := range []*listed{r.own, r.behind} {
		if d != nil && slices.ContainsFunc(programs, func(p program) bool { return d.leavesBy(p.args, r.name) }) {
			return guest.Departing
		}
	}
	receives := slices.ContainsFunc(programs, func(p program) bool {
		return slices.Contains(p.args, "migrate-receive")
	})
	switch d := r.own; {
	case d == nil:
	case d.isSuspended(), d.isPaused() && receives: // it has its name, and is about to begin
		return guest.Suspended
	case d.hasEnded():
		return guest.Changing
	default:
		return guest.Runs
	}
	switch {
	case r.behind != nil && !r.behind.isSuspended():
		return guest.Changing // somebody has let it run again, under this name
	case r.behind != nil || r.copied != nil:
		return guest.Suspended
	case r.own == nil && awaited(programs, func(domain int) bool { return r.ids[domain] })[r.name]:
		return guest.Changing // it reboots
	}
	return guest.Absent
}

// remains lists the domains of a guest.
func (d *Driver) remains(ctx context.Context, name string) (*remains, error) {
	out, err := d.xl(ctx, "list", "-v")
	if err != nil {
		return nil, err
	}
	all, err := parseListed(out)
	if err != nil {
		return nil, err
	}
	r := &remains{name: name, ids: map[int]bool{}}
	for i := range all {
		r.ids[all[i].id] = true
		switch {
		case all[i].id == controlDomain:
		case all[i].name == name:
			r.own = &all[i]
		case all[i].name == name+incoming:
			r.copied = &all[i]
		case all[i].name == name+migratedAway:
			r.behind = &all[i]
		}
	}
	return r, nil
}

// listed is a domain in the output of `xl list -v`.
type listed struct {
	id                 int
	name, states, uuid string
}

func (l *listed) isPaused() bool { return l.states[pausedFlag] == 'p' }

// hasEnded reports whether it was shut down, for whatever reason, or is being removed.
func (l *listed) hasEnded() bool { return l.states[shutdownFlag] == 's' || l.states[dyingFlag] == 'd' }

// isSuspended reports whether all of its memory was copied or saved, and it waits for what follows.
func (l *listed) isSuspended() bool {
	return l.states[shutdownFlag] == 's' && l.states[reasonFlag] == 's' && l.states[dyingFlag] != 'd'
}

// leavesBy reports whether a program migrates the domain: xl migrate [OPTIONS] DOMAIN HOST.
func (l *listed) leavesBy(args []string, name string) bool {
	return len(args) > 3 && slices.Contains(args, "migrate") &&
		(args[len(args)-2] == strconv.Itoa(l.id) || args[len(args)-2] == name)
}

var listedLine = regexp.MustCompile(
	`^(.*\S)\s+(\d{1,9})\s+\d+\s+\d+\s+(` + stateLetters + `)\s+\d+\.\d\s+([0-9a-f-]{36})\s`)

// parseListed reads the output of `xl list -v`.
func parseListed(out []byte) (all []listed, err error) {
	for line := range tableLines(out) {
		f := listedLine.FindStringSubmatch(line)
		if f == nil {
			return nil, fmt.Errorf("xl list -v: cannot parse %.120q", line)
		}
		all = append(all, listed{id: number(f[2]), name: f[1], states: f[3], uuid: f[4]})
	}
	return all, nil
}

// Arrived returns nothing: xl stores no figures of a migration on its target.
func (d *Driver) Arrived(context.Context, string) (guest.Transfer, error) {
	return guest.Transfer{}, nil
}

// RunsAt reports whether the host at a URI runs the guest that this host has under the name: by its UUID, which a
// migration does not change.
func (d *Driver) RunsAt(ctx context.Context, uri, name string) (bool, error) {
	here, err := d.remains(ctx, name)
	if err != nil {
		return false, err
	}
	mine := cmp.Or(here.own, here.behind)
	if mine == nil {
		return false, fmt.Errorf("VM %s: %w", name, guest.ErrNotFound)
	}
	r, err := d.routeTo(uri)
	if err != nil {
		return false, err
	}
	there, err := r.to.remains(ctx, name)
	if err != nil {
		return false, fmt.Errorf("on %s: %w", r.address, err)
	}
	return there.own != nil && there.own.uuid == mine.uuid && there.copied == nil &&
		!there.own.hasEnded() && !there.own.isPaused(), nil
}

// Resume lets a guest run again that is suspended here after its migration. xl can do so from Xen 4.20 on.
func (d *Driver) Resume(ctx context.Context, name string) error {
	here, err := d.remains(ctx, name)
	if err != nil {
		return err
	}
	of := cmp.Or(here.own, here.behind)
	switch {
	case of == nil:
		return fmt.Errorf("resuming VM %s: %w", name, guest.ErrNotFound)
	case !of.isSuspended():
		return fmt.Errorf("resuming VM %s: %w: domain %d is not suspended", name, guest.ErrRefused, of.id)
	}
	id := strconv.Itoa(of.id)
	if of == here.behind {
		if _, err := d.xl(ctx, "rename", id, name); err != nil {
			return refused(fmt.Errorf("resuming VM %s: %w", name, err))
		}
	}
	if _, err := d.xl(ctx, "resume", id); err != nil {
		return refused(fmt.Errorf("resuming VM %s, which is suspended after its migration and exists only here "+
			"(domain %s): %w; Xen has 'xl resume' from 4.20 on; do not end the domain, unless you give the VM up", name,
			id, err))
	}
	return nil
}

// ErrNotSuspended means that a guest is not suspended for a migration, so its domain here may be the one that runs.
var ErrNotSuspended = errors.New("it is not suspended for a migration")

// DiscardSuspended ends what a migration has left of a guest here: it runs on the target. It refuses a domain that is
// not suspended.
func (d *Driver) DiscardSuspended(ctx context.Context, name string) error {
	here, err := d.remains(ctx, name)
	if err != nil {
		return err
	}
	of := cmp.Or(here.own, here.behind)
	switch {
	case of == nil:
		return nil
	case !of.isSuspended():
		return fmt.Errorf("removing what the migration of VM %s left: %w: %w", name, guest.ErrRefused, ErrNotSuspended)
	}
	if _, err := d.call(ctx, d.build, "xl", "destroy", strconv.Itoa(of.id)); err != nil {
		return refused(fmt.Errorf("removing what the migration of VM %s left: %w", name, err))
	}
	return d.forget(ctx, name, of.uuid)
}

// disk is a disk in the output of `xl list -l`.
type disk struct {
	Path  string          `json:"pdev_path"`
	Write json.RawMessage `json:"readwrite"` // absent: it is read-only
}

// shared reports whether other hosts reach all disks that a guest writes to; nil: not known.
func (d *Driver) shared(c *config) *bool {
	var paths []string
	for _, disk := range c.Config.Disks {
		if text := string(disk.Write); text != "" && text != "0" {
			paths = append(paths, disk.Path)
		}
	}
	switch {
	case len(paths) == 0:
		return new(true)
	case d.Shared == nil:
		return nil
	}
	return d.Shared(paths)
}
