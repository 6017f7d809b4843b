package xen

import (
	"context"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
)

// presence is what a host has of a VM during or after its migration.
type presence int

const (
	absent    presence = iota
	named              // a domain of its name
	suspended          // on the source: of its name, and stopped for the last pages
	away               // on the source: renamed, and stopped for good unless it is resumed
	copied             // on the target: of the name that a copy has until it takes over
	unknown            // the host does not answer
)

func (p presence) String() string {
	return map[presence]string{absent: "is not there", named: "runs", suspended: "is suspended",
		away: "is suspended under the name NAME" + migratedAway, copied: "is a copy that does not run",
		unknown: "cannot be seen"}[p]
}

// sighting is what the two hosts of a migration have of the VM once xl migrate has ended.
type sighting struct{ source, target presence }

// verdict says what to do after a migration.
type verdict int

const (
	hasMigrated verdict = iota // nothing more
	staysHere                  // nothing more
	endCopy                    // the VM runs on the source: the copy is to go
	endSource                  // the VM runs on the target: what is suspended on the source is to go
	hasEnded                   // the VM is nowhere
	lookAgain                  // programs on the target have not ended yet
	askOperator                // an operator must decide: either copy may be the only one
)

// next decides from what both hosts have. It never ends the only domain of a VM, and none that may run.
func (s sighting) next() verdict {
	switch {
	case s.target == named && s.source == absent:
		return hasMigrated
	case s.target == named && s.source == away:
		return endSource
	case s.target == named:
		return askOperator // both, which xl excludes
	case s.source == named && s.target == copied:
		return endCopy
	case s.source == named:
		return staysHere
	case s.source == absent && s.target == absent:
		return hasEnded
	case s.target == copied || s.source == suspended && s.target == absent:
		return lookAgain // it takes over, ends, or resumes
	}
	return askOperator
}

// undecided is the error of a migration after which an operator must act.
func (s sighting) undecided(d domainRef, address string) error {
	what := fmt.Sprintf("VM %s: domain %d of this host %v, and on %s it %v", d.name, d.id, s.source, address, s.target)
	switch {
	case s.target == unknown:
		return fmt.Errorf("%s; nothing more was done: look with 'xl list' on both hosts, and let one of them run", what)
	case s.source == away && s.target == absent:
		return fmt.Errorf("%s; it exists only here: do not end it; 'xl rename %d %s' and 'xl resume %[2]d', which Xen "+
			"has from 4.20 on, let it run again", what, d.id, d.name)
	}
	return fmt.Errorf("%s; nothing more was done: end one of them with 'xl destroy', and let the other run", what)
}

// look sees what both hosts have of a VM. The target may be the source itself.
func (r *Route) look(ctx context.Context, d domainRef) (s sighting, err error) {
	here, err := r.from.domains(ctx)
	if err != nil {
		return s, fmt.Errorf("VM %s: %w: after the migration, this host: %w", d.name, guest.ErrRefused, err)
	}
	if old, ok := here[d.id]; ok && old.uuid == d.uuid {
		switch {
		case old.name == d.name+migratedAway:
			s.source = away
		case old.stopped:
			s.source = suspended
		default:
			s.source = named
		}
	}
	there, err := r.to.domains(ctx)
	if err != nil {
		s.target = unknown
		return s, nil //nolint:nilerr // a target that does not answer is a state of the migration
	}
	for id, x := range there {
		switch {
		case x.uuid != d.uuid || d.itself && id == d.id:
		case x.name == d.name:
			s.target = named
		case x.name == d.name+incoming:
			s.target = copied
		}
	}
	return s, nil
}

// domainNow is a domain as xl lists it.
type domainNow struct {
	name, uuid string
	stopped    bool // shut down, which a suspended domain is, or dying
}

// domains lists names and states of all domains.
func (d *Driver) domains(ctx context.Context) (map[int]domainNow, error) {
	out, err := d.xl(ctx, "list", "-l")
	if err != nil {
		return nil, err
	}
	configs, err := parseConfigs(out)
	if err != nil {
		return nil, err
	}
	if out, err = d.xl(ctx, "list", "-c", "-n"); err != nil {
		return nil, err
	}
	states, err := parseDomains(out)
	if err != nil {
		return nil, err
	}
	all := make(map[int]domainNow, len(configs))
	for i := range states {
		s := &states[i]
		c, ok := configs[s.ID]
		if !ok || s.ID == controlDomain {
			continue
		}
		all[s.ID] = domainNow{name: s.Name, uuid: c.Config.Create.UUID, stopped: s.runState() == "shutoff"}
	}
	return all, nil
}
