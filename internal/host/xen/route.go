package xen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// SSH is the transport by default. It asks no questions: a password that nobody types would be a migration that hangs.
const SSH = "ssh -o BatchMode=yes"

const (
	// migratedAway is what xl adds to the name of a domain while its copy takes over (xl migrate).
	migratedAway = "--migratedaway"
	// remoteTime is the deadline of a program on the target.
	remoteTime = time.Minute
	// settleEvery and settleTime are for the programs on the target, which end some time after their connection.
	settleEvery, settleTime = time.Second, 10 * time.Second
)

// Route implements operate.Route: the way to another Xen host, as `xl migrate` goes it.
type Route struct {
	from, to           *Driver
	address, transport string
	program            string // numavisor on the target
}

var (
	// An address is a word of a shell's command line, of which xl makes one.
	validAddress = regexp.MustCompile(`^[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]*$`)
	plainWord    = regexp.MustCompile(`^[A-Za-z0-9_./:=,+-]+$`)
)

// Route returns the way to the host of an address. The transport is a command, as the option -s of xl migrate takes
// one: it runs what follows the address on that host.
func (d *Driver) Route(address, transport string) (*Route, error) {
	if !validAddress.MatchString(address) {
		return nil, fmt.Errorf("%q is no address of a host; give a name or an IP address, with USER@ before it if "+
			"need be", address)
	}
	if strings.TrimSpace(transport) == "" {
		return nil, errors.New("the transport is empty; give a command such as \"" + SSH + "\"")
	}
	r := &Route{from: d, address: address, transport: transport, program: "numavisor"}
	r.to = New(r.run)
	r.to.limit = remoteTime
	return r, nil
}

// run runs a program on the target. The transport gives its words to a shell there.
func (r *Route) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	words := []string{"-c", "exec " + r.transport + ` "$@"`, "sh", r.address}
	for _, word := range append([]string{program}, args...) {
		if !plainWord.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		words = append(words, word)
	}
	out, err := r.from.run(ctx, "sh", words...)
	name := strings.Join(append([]string{program}, args[:min(len(args), 1)]...), " ")
	var failed *FailedError
	if errors.As(err, &failed) {
		failed.Command = name + " on " + r.address
		return out, failed
	}
	if err != nil {
		return out, fmt.Errorf("%s on %s: %w", name, r.address, err)
	}
	return out, nil
}

// Inventory implements operate.Route: it runs numavisor capture on the target.
func (r *Route) Inventory(ctx context.Context) (inventory.Host, error) {
	out, err := r.to.call(ctx, remoteTime, r.program, "capture")
	if err != nil {
		return inventory.Host{}, fmt.Errorf("%w; the host needs numavisor on the PATH, and %q must reach it "+
			"without a question; or give what 'numavisor capture' wrote there (--inventory)", err, r.transport)
	}
	inv, err := inventory.Parse(bytes.NewReader(out))
	if err != nil {
		return inv, fmt.Errorf("numavisor capture on %s: %w", r.address, err)
	}
	return inv, CheckTarget(&inv)
}

// CheckTarget refuses an inventory of a host to which xl migrates no VM.
func CheckTarget(inv *inventory.Host) error {
	if len(inv.Pools) == 0 {
		return fmt.Errorf("host %s is no Xen host, or its CPU pools are unknown", inv.Name)
	}
	return nil
}

// Record implements operate.Route.
func (r *Route) Record(ctx context.Context, name string, i guest.Intent) error {
	if err := r.to.Record(ctx, name, i); err != nil {
		return fmt.Errorf("on %s: %w", r.address, err)
	}
	return nil
}

// Arrived implements operate.Route.
func (r *Route) Arrived(ctx context.Context, name string) (inventory.Guest, error) {
	guests, err := r.to.Guests(ctx)
	if err != nil {
		return inventory.Guest{}, err
	}
	for i := range guests {
		if guests[i].Name == name {
			return guests[i], nil
		}
	}
	return inventory.Guest{}, fmt.Errorf("VM %s on %s: %w", name, r.address, guest.ErrNotFound)
}

// Migrate implements operate.Route by `xl migrate -C`: libxl takes the memory of the copy from the nodes of the CPUs
// in its configuration. Once begun, it does not end with the context, since the VM could stay suspended.
func (r *Route) Migrate(
	ctx context.Context, name string, placed guest.Placement, definition []byte, itself bool,
) error {
	return r.migrate(ctx, name, itself, func(id int, uuid string) (string, error) {
		return r.from.copyConfig(ctx, id, uuid, name, &placed, definition)
	})
}

// migrate is Migrate with a function that writes the configuration for the target into a file.
func (r *Route) migrate(
	ctx context.Context, name string, itself bool, configure func(id int, uuid string) (file string, err error),
) error {
	fail := func(err error) error { return fmt.Errorf("migrating VM %s to %s: %w", name, r.address, err) }
	id, uuid, err := r.from.find(ctx, name)
	if err != nil {
		return err
	}
	if _, _, err := r.to.find(ctx, name+incoming); !errors.Is(err, guest.ErrNotFound) {
		return fail(errors.Join(err, fmt.Errorf("%w: a copy of it, %s%s, is there; if no 'xl migrate' runs, an "+
			"earlier attempt left it: end it there with 'xl destroy %[2]s%[3]s'", guest.ErrRefused, name, incoming)))
	}
	file, err := configure(id, uuid)
	if err != nil {
		return fail(err)
	}
	defer os.Remove(file)
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	whole := context.WithoutCancel(ctx)
	_, failed := r.from.call(whole, recreateTime, "xl", "migrate", "-s", r.transport, "-C", file, strconv.Itoa(id),
		r.address)
	if err := r.settle(whole, domainRef{id, name, uuid, itself}, refused(failed)); err != nil {
		return fail(err)
	}
	return r.from.forget(whole, name, uuid)
}

// domainRef names one domain of the source.
type domainRef struct {
	id         int
	name, uuid string
	itself     bool // the target is the source
}

// settle brings a migration that has ended, by an error or not, into a state with one VM, and returns an error unless
// it runs on the target.
func (r *Route) settle(ctx context.Context, d domainRef, failed error) error {
	var s sighting
	for until := time.Now().Add(settleTime); ; {
		var err error
		if s, err = r.look(ctx, d); err != nil {
			return errors.Join(failed, err)
		}
		if failed == nil && s.source == absent { // the target has said that the VM runs, before xl ended it here
			return nil
		}
		if s.next() != lookAgain || time.Now().After(until) {
			break
		}
		select {
		case <-time.After(settleEvery):
		case <-ctx.Done():
			return errors.Join(failed, ctx.Err())
		}
	}
	switch s.next() {
	case hasMigrated:
		return nil
	case endSource:
		_, err := r.from.call(ctx, r.from.build, "xl", "destroy", strconv.Itoa(d.id))
		return err
	case endCopy:
		return errors.Join(orNothing(failed, d), r.to.dropCopy(ctx, d.name))
	case staysHere:
		return orNothing(failed, d)
	case hasEnded:
		return errors.Join(failed, fmt.Errorf("VM %s: %w: it ended meanwhile", d.name, guest.ErrNotFound))
	case lookAgain, askOperator:
	}
	return errors.Join(failed, s.undecided(d, r.address))
}

// orNothing is the error of a migration after which the VM runs here.
func orNothing(failed error, d domainRef) error {
	if failed == nil {
		failed = fmt.Errorf("xl migrate ended without an error, and domain %d still is the VM", d.id)
	}
	return failed
}
