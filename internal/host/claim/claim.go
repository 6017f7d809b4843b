// Package claim records, on one host, the reservations that no VM shows yet: of
// guests being created and of plain processes that were bound. Two decisions at
// the same time never see the same free resources, because deciding and
// claiming happen under one lock; a claim whose holder has ended is void.
//
// The ledger is in a folder below /run: it is discarded at reboot, like the
// processes that it describes.
package claim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/lock"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// DefaultFolder is the ledger's folder unless the caller sets another.
const DefaultFolder = "/run/numavisor"

// Process identifies a process even if the kernel reuses its number.
type Process struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"` // field 22 of /proc/PID/stat
}

// Claim is one reservation. It holds as long as its Holder lives.
type Claim struct {
	Name   string  `json:"name"`
	Holder Process `json:"holder"`
	// By is who asked for it, as the journal names it; Since is when.
	By        string          `json:"by,omitempty"`
	Since     time.Time       `json:"since,omitzero"`
	Placement guest.Placement `json:"placement"`
	// Process is set for a plain process that was bound: then it is also the
	// holder.
	Process bool `json:"process,omitempty"`
}

// Grown is the number of pages by which a guest's huge page pools were
// enlarged, to be given back when it is deleted.
type Grown struct {
	Node  topology.NodeID `json:"node"`
	Size  topology.Bytes  `json:"size_bytes"`
	Pages uint64          `json:"pages"`
}

// Ledger is the folder of claims. Alive reports whether a process is still the
// identified one.
type Ledger struct {
	Folder string
	Alive  func(Process) bool
	// Wait limits the wait for the lock, even if the context allows hours; 0:
	// until the context ends.
	Wait time.Duration
}

// Locked calls decide while no other process on the host decides. It fails if
// it cannot take the lock before ctx ends, or within l.Wait.
func (l Ledger) Locked(ctx context.Context, decide func(Locked) error) error {
	if err := lock.Folder(l.Folder); err != nil {
		return fmt.Errorf("creating the ledger of claims: %w; run as root, or choose another folder with --state", err)
	}
	wait := ctx
	if l.Wait > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, l.Wait)
		defer cancel()
	}
	held, err := lock.Exclusive(wait, filepath.Join(l.Folder, "lock"))
	if err != nil {
		return fmt.Errorf("waiting for another decision on this host to end: %w", err)
	}
	defer func() { _ = held.Close() }() // also if decide panics
	return decide(Locked{l})
}

// Locked gives access to the ledger while its lock is held.
type Locked struct{ ledger Ledger }

// Claims returns all valid claims, by name, and removes void ones and files that a process which was killed has left.
func (t Locked) Claims() ([]inventory.Claim, error) {
	all, err := t.ledger.read()
	if err != nil {
		return nil, err
	}
	if err := t.ledger.removeUnfinished(); err != nil {
		return nil, err
	}
	var live []inventory.Claim
	for _, c := range all {
		if !t.ledger.Alive(c.Holder) {
			if err := t.ledger.Release(c.Name); err != nil {
				return nil, err
			}
			continue
		}
		live = append(live, c.seen())
	}
	return live, nil
}

// Put records a claim, replacing one of the same name.
func (t Locked) Put(c Claim) error {
	return writeWhole(t.ledger.path("claims", c.Name), c)
}

// Claims returns all valid claims, without taking the lock: only for display.
// With an error it returns those that could be read.
func (l Ledger) Claims() ([]inventory.Claim, error) {
	all, err := l.read()
	var live []inventory.Claim
	for _, c := range all {
		if l.Alive(c.Holder) {
			live = append(live, c.seen())
		}
	}
	return live, err
}

func (c Claim) seen() inventory.Claim {
	s := inventory.Claim{Name: c.Name, Holder: c.Holder.PID, By: c.By, Since: c.Since, Placement: c.Placement}
	if c.Process {
		s.PID = c.Holder.PID
	}
	return s
}

// behind is how far the kernel's time of a file may be behind the clock: a timer tick, or a second in a file system
// without fractions of seconds.
func behind(of time.Time) time.Duration {
	if of.Nanosecond() == 0 {
		return time.Second
	}
	return 100 * time.Millisecond
}

// UnchangedSince reports whether no claim has been put or released since a time: then no process has created,
// bound or moved a guest since. It is false where that is not certain.
func (t Locked) UnchangedSince(at time.Time) bool {
	for _, folder := range []string{"claims", "pools"} {
		info, err := os.Stat(filepath.Join(t.ledger.Folder, folder))
		switch {
		case errors.Is(err, fs.ErrNotExist): // nothing was ever put
		case err != nil, info.ModTime().Add(behind(info.ModTime())).After(at):
			return false
		}
	}
	return true
}

// ReleaseSeen removes claims of the caller, which has seen at a time what it did to their guests. UnchangedSince is
// true for that time afterwards, unless another process has changed a claim since, or has one: it may have changed
// its guest.
func (l Ledger) ReleaseSeen(ctx context.Context, at time.Time, names ...string) error {
	release := func() error {
		var errs []error
		for _, name := range names {
			errs = append(errs, l.Release(name))
		}
		return errors.Join(errs...)
	}
	var err error
	locked := l.Locked(ctx, func(t Locked) error {
		unchanged := t.UnchangedSince(at)
		claims, unread := t.Claims()
		others := slices.ContainsFunc(claims, func(c inventory.Claim) bool { return !slices.Contains(names, c.Name) })
		if err = release(); err == nil && unread == nil && unchanged && !others {
			before := at.Add(-time.Second)
			err = os.Chtimes(filepath.Join(l.Folder, "claims"), before, before)
		}
		return nil
	})
	if locked != nil {
		return release() // without the lock, another process may change a claim at the same time
	}
	return err
}

// Release removes a claim; a missing claim is no error.
func (l Ledger) Release(name string) error { return remove(l.path("claims", name)) }

// PutGrown records by how many pages pools were enlarged for a guest, in
// addition to what is recorded.
func (l Ledger) PutGrown(name string, more []Grown) error {
	have, err := l.GrownFor(name)
	if err != nil {
		return err
	}
	for _, m := range more {
		i := slices.IndexFunc(have, func(g Grown) bool { return g.Node == m.Node && g.Size == m.Size })
		if i < 0 {
			have = append(have, m)
		} else {
			have[i].Pages += m.Pages
		}
	}
	return writeWhole(l.path("pools", name), have)
}

// GrownFor returns by how many pages pools were enlarged for a guest.
func (l Ledger) GrownFor(name string) ([]Grown, error) {
	var grown []Grown
	err := readWhole(l.path("pools", name), &grown)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return grown, err
}

// ForgetGrown removes the record after the pages were given back.
func (l Ledger) ForgetGrown(name string) error { return remove(l.path("pools", name)) }

// longest limits the escaped name in a file's name, in bytes: with what
// writeWhole appends, it stays below NAME_MAX (255).
const longest = 200

// path maps a guest's name to a file; names may contain any character. A name
// that is too long when escaped is cut, and its hash appended: "%~" is in no
// escaped name, so the file is that of no other name.
func (l Ledger) path(kind, name string) string {
	file := url.PathEscape(name)
	if len(file) > longest {
		file = fmt.Sprintf("%s%%~%x", file[:longest/2], sha256.Sum256([]byte(name)))
	}
	return filepath.Join(l.Folder, kind, file+".json")
}

// read returns the claims that can be read, and an error that names the other files.
func (l Ledger) read() ([]Claim, error) {
	entries, err := os.ReadDir(filepath.Join(l.Folder, "claims"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the ledger of claims: %w", err)
	}
	var claims []Claim
	var damaged []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var c Claim
		path := filepath.Join(l.Folder, "claims", e.Name())
		err := readWhole(path, &c)
		if err == nil && l.path("claims", c.Name) != path {
			err = fmt.Errorf("reading %s: it names VM %q instead of the file's own; remove it", path, c.Name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // released in the meantime
		}
		if err != nil {
			damaged = append(damaged, err)
			continue
		}
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b Claim) int { return strings.Compare(a.Name, b.Name) })
	return claims, errors.Join(damaged...)
}

// maxBytes limits how much of a file is read: a claim takes some KiB.
const maxBytes = 4 << 20

func readWhole(path string, v any) error {
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w; remove it if no VM on this host is being created, bound or moved", path, err)
	}
	return nil
}

func readBounded(path string) ([]byte, error) {
	file, size, err := lock.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if size > maxBytes {
		return nil, fmt.Errorf("it has %d bytes, more than any claim", size)
	}
	return io.ReadAll(io.LimitReader(file, maxBytes))
}

// writeWhole replaces the file in one step: a reader sees the old text or the
// new one. Nothing is synced to disk, which is why renameio is not used: a
// claim ends with its process, so it never has to survive a crash of the host.
func writeWhole(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("creating the ledger's folder: %w", err)
	}
	// An older version made the folder readable by all users.
	if err := os.Chmod(folder, 0o700); err != nil { //nolint:gosec // a folder needs the x bit
		return fmt.Errorf("restricting the ledger's folder to its owner: %w", err)
	}
	temporary := fmt.Sprintf("%s.%d%s", path, os.Getpid(), unfinished)
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("writing a claim: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("writing a claim: %w", err)
	}
	return nil
}

// unfinished is the end of the name of a file that is being written.
const unfinished = ".new"

// removeUnfinished removes files whose writer was killed. The caller holds the lock, so no claim is being written.
func (l Ledger) removeUnfinished() error {
	folder := filepath.Join(l.Folder, "claims")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), unfinished) {
			err = errors.Join(err, remove(filepath.Join(folder, e.Name())))
		}
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}
