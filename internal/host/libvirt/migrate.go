package libvirt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// migrationTime limits a migration whose context has no deadline.
	migrationTime = 24 * time.Hour
	// abortTime is for how long a migration may continue after it was aborted: libvirt
	// cleans up on both hosts.
	abortTime = time.Minute
	// progressEvery is how often a migration's progress is read.
	progressEvery = time.Second
	// postCopyAfter is the number of passes over the memory after which a migration with PostCopy
	// switches: later passes copy only what the guest keeps changing.
	postCopyAfter = 2
)

// Migrate moves a running guest to another host while it runs: this host's libvirt
// daemon talks to the target's (peer to peer), and the guest arrives bound to the
// intent's placement. Before anything is changed, Migrate refuses a guest whose disks or
// devices belong to this host, or whose XML contradicts the placement
// (guest.ErrRefused, *ContradictionError).
//
// If ctx ends, Migrate aborts the migration and returns when libvirt has cleaned up.
// After any error, Presence says what is true here: the error alone does not.
func (d *Driver) Migrate(ctx context.Context, m guest.Departure) (guest.Transfer, error) {
	params, flags, err := d.departure(ctx, m)
	if err != nil {
		return guest.Transfer{}, err
	}
	call, giveUp := context.WithTimeout(context.WithoutCancel(ctx), migrationTime)
	defer giveUp()
	done := make(chan error, 1)
	go func() {
		done <- d.control(call, "migrating it", m.Name, func(dom *libvirt.Domain) error {
			if m.MaxDowntime > 0 {
				if err := dom.MigrateSetMaxDowntime(uint64(m.MaxDowntime.Milliseconds()), 0); err != nil {
					return err
				}
			}
			return dom.MigrateToURI3(m.URI, params, flags)
		})
	}()
	return d.watch(ctx, m, done, giveUp)
}

// watch reads the progress of a migration until it has ended, and aborts it when ctx ends.
func (d *Driver) watch(
	ctx context.Context, m guest.Departure, done <-chan error, giveUp context.CancelFunc,
) (guest.Transfer, error) {
	var last guest.Transfer
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	ended, switched := ctx.Done(), !m.PostCopy
	var late <-chan time.Time
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return last, err
		case <-ended:
			ended = nil
			// An abort that fails finds the migration at its end: its result follows.
			_ = d.AbortMigration(context.WithoutCancel(ctx), m.Name)
			late = time.After(abortTime)
		case <-late:
			giveUp() // the call returns with ErrUnknownOutcome
		case <-ticker.C:
			now, passes, err := d.progress(ctx, m.Name)
			if err != nil {
				continue // the call itself says how it ends
			}
			last = now
			if m.Progress != nil {
				m.Progress(now)
			}
			if !switched && passes > postCopyAfter {
				switched = true
				_ = d.control(ctx, "switching it to post-copy", m.Name, func(dom *libvirt.Domain) error {
					return dom.MigrateStartPostCopy(0)
				}) // if that fails, pre-copy continues
			}
		}
	}
}

// departure prepares the call: the XML for the target, and libvirt's parameters and flags.
func (d *Driver) departure(
	ctx context.Context, m guest.Departure,
) (*libvirt.DomainMigrateParameters, libvirt.DomainMigrateFlags, error) {
	const op = "preparing its migration"
	var live, stored string
	err := d.read(ctx, op, m.Name, func(dom *libvirt.Domain) error {
		persistent, err := dom.IsPersistent()
		if err != nil {
			return err
		}
		const flags = libvirt.DOMAIN_XML_MIGRATABLE | libvirt.DOMAIN_XML_SECURE
		if live, err = dom.GetXMLDesc(flags); err == nil && persistent {
			stored, err = dom.GetXMLDesc(flags | libvirt.DOMAIN_XML_INACTIVE)
		}
		return err
	})
	if err == nil {
		err = fail(op, m.Name, checkMovableByMigration([]byte(live), m.CopyStorage))
	}
	if err != nil {
		return nil, 0, err
	}
	bound, err := RewriteForTarget([]byte(live), m.Intent)
	if err != nil {
		return nil, 0, fail(op, m.Name, err)
	}
	params := &libvirt.DomainMigrateParameters{DestXMLSet: true, DestXML: string(bound),
		URISet: m.Data != "", URI: m.Data}
	flags := migrationFlags(&m)
	if stored != "" {
		next, err := RewriteForTarget([]byte(stored), m.Intent)
		if err != nil {
			return nil, 0, fail(op, m.Name, fmt.Errorf("its configuration for the next start: %w", err))
		}
		params.PersistXMLSet, params.PersistXML = true, string(next)
		flags |= libvirt.MIGRATE_PERSIST_DEST | libvirt.MIGRATE_UNDEFINE_SOURCE
	}
	return params, flags, nil
}

// migrationFlags returns libvirt's flags for how a guest is copied.
func migrationFlags(m *guest.Departure) libvirt.DomainMigrateFlags {
	flags := libvirt.MIGRATE_LIVE | libvirt.MIGRATE_PEER2PEER | libvirt.MIGRATE_ABORT_ON_ERROR
	for flag, wanted := range map[libvirt.DomainMigrateFlags]bool{
		libvirt.MIGRATE_AUTO_CONVERGE: m.AutoConverge, libvirt.MIGRATE_POSTCOPY: m.PostCopy,
		libvirt.MIGRATE_NON_SHARED_DISK: m.CopyStorage,
	} {
		if wanted {
			flags |= flag
		}
	}
	return flags
}

// progress reads how far a migration is, and the number of passes over the memory.
func (d *Driver) progress(ctx context.Context, name string) (t guest.Transfer, passes uint64, err error) {
	err = d.read(ctx, "reading its migration's progress", name, func(dom *libvirt.Domain) error {
		job, err := dom.GetJobStats(0)
		if err == nil {
			t, passes = transferOf(job), job.MemIteration
		}
		return err
	})
	return t, passes, err
}

// Arrived returns what the migration by which a guest came to this host has copied, and its
// downtime; zero if libvirt does not know it any more.
func (d *Driver) Arrived(ctx context.Context, name string) (t guest.Transfer, err error) {
	err = d.read(ctx, "reading its migration's result", name, func(dom *libvirt.Domain) error {
		job, err := dom.GetJobStats(libvirt.DOMAIN_JOB_STATS_COMPLETED | libvirt.DOMAIN_JOB_STATS_KEEP_COMPLETED)
		if err == nil {
			t = transferOf(job)
		}
		return err
	})
	return t, err
}

func transferOf(job *libvirt.DomainJobInfo) guest.Transfer {
	milliseconds := func(n uint64) time.Duration {
		n = min(n, math.MaxInt64/uint64(time.Millisecond))
		return time.Duration(n) * time.Millisecond
	}
	return guest.Transfer{
		Copied: topology.Bytes(job.DataProcessed), Remaining: topology.Bytes(job.DataRemaining),
		Elapsed: milliseconds(job.TimeElapsed), Downtime: milliseconds(job.Downtime),
	}
}

// AbortMigration ends a migration in progress: the guest continues to run here. One that has
// reached its last step completes all the same, with an error here.
func (d *Driver) AbortMigration(ctx context.Context, name string) error {
	return d.control(ctx, "aborting its migration", name, (*libvirt.Domain).AbortJob)
}

// Presence returns what this host has of a guest that migrates.
func (d *Driver) Presence(ctx context.Context, name string) (p guest.Presence, err error) {
	err = d.read(ctx, "looking for it", name, func(dom *libvirt.Domain) (err error) {
		p, err = presenceOf(dom)
		return err
	})
	if errors.Is(err, guest.ErrNotFound) {
		return guest.Absent, nil
	}
	return p, err
}

func presenceOf(dom *libvirt.Domain) (guest.Presence, error) {
	state, reason, err := dom.GetState()
	if err != nil {
		return guest.Absent, err
	}
	persistent, err := dom.IsPersistent()
	if err != nil {
		return guest.Absent, err
	}
	departing := false
	if state == libvirt.DOMAIN_RUNNING || state == libvirt.DOMAIN_PAUSED {
		// The target's libvirt refuses to report a job of an arriving guest.
		job, err := dom.GetJobStats(0)
		if err != nil && !errors.Is(err, libvirt.ERR_OPERATION_INVALID) &&
			!errors.Is(err, libvirt.ERR_OPERATION_UNSUPPORTED) && !errors.Is(err, libvirt.ERR_NO_SUPPORT) {
			return guest.Absent, err
		}
		departing = err == nil && job.Type != libvirt.DOMAIN_JOB_NONE &&
			job.Operation == libvirt.DOMAIN_JOB_OPERATION_MIGRATION_OUT
	}
	return presence(state, reason, departing, persistent), nil
}

// presence interprets libvirt's state of a guest and the reason for it; departing says that a
// job migrates it to another host. libvirt lists a guest without a stored configuration as
// shut off before its QEMU runs and after it has ended, and an arriving one that is destroyed
// as shutting down: neither has arrived.
func presence(state libvirt.DomainState, reason int, departing, persistent bool) guest.Presence {
	switch {
	case state == libvirt.DOMAIN_NOSTATE || state == libvirt.DOMAIN_SHUTDOWN,
		state == libvirt.DOMAIN_SHUTOFF && !persistent:
		return guest.Changing
	case state == libvirt.DOMAIN_SHUTOFF || state == libvirt.DOMAIN_CRASHED:
		return guest.Stored
	case departing:
		return guest.Departing
	case state == libvirt.DOMAIN_RUNNING && (reason == int(libvirt.DOMAIN_RUNNING_POSTCOPY) ||
		reason == int(libvirt.DOMAIN_RUNNING_POSTCOPY_FAILED)):
		return guest.Suspended // a part of its memory is on the source still
	case state != libvirt.DOMAIN_PAUSED:
		return guest.Runs
	}
	switch libvirt.DomainPausedReason(reason) {
	case libvirt.DOMAIN_PAUSED_MIGRATION, libvirt.DOMAIN_PAUSED_STARTING_UP, libvirt.DOMAIN_PAUSED_POSTCOPY,
		libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
		return guest.Suspended
	default:
		return guest.Runs
	}
}

// RunsAt reports whether the libvirt daemon at a URI, of another host, runs the guest that this
// host has under the name: by its UUID, which a migration does not change.
func (d *Driver) RunsAt(ctx context.Context, uri, name string) (bool, error) {
	here, err := d.Find(ctx, name)
	if err != nil {
		return false, err
	}
	other := New(uri)
	defer other.Close()
	there, err := other.Presence(ctx, here.UUID)
	return there == guest.Runs, err
}

// ErrNotSuspended means that a guest is not stopped for a migration, so its copy here
// may be the one that runs.
var ErrNotSuspended = errors.New("it is not paused for a migration")

// DiscardSuspended ends a guest that is paused here after its migration, and removes its
// configuration: it runs on the target. It refuses a guest that runs (ErrNotSuspended).
func (d *Driver) DiscardSuspended(ctx context.Context, name string) error {
	return d.control(ctx, "removing what its migration left", name, func(dom *libvirt.Domain) error {
		now, err := presenceOf(dom)
		switch {
		case err != nil:
			return err
		case now != guest.Suspended && now != guest.Stored:
			return fmt.Errorf("%w: %w", guest.ErrRefused, ErrNotSuspended)
		}
		persistent, err := dom.IsPersistent()
		if err != nil {
			return err
		}
		if now == guest.Suspended {
			if err := dom.Destroy(); err != nil && !errors.Is(err, libvirt.ERR_OPERATION_INVALID) {
				return err
			}
		}
		if persistent {
			return undefine(dom)
		}
		return nil
	})
}
