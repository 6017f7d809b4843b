package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

// recordsFlag defines the flag for the folder that holds the journal and the
// alarms.
func recordsFlag(f *pflag.FlagSet, folder *string) {
	f.StringVar(folder, "records", record.DefaultFolder, "folder of the journal and the alarms")
}

// recordEffects names the user who runs the command, and lets a user without
// privileges continue without the journal.
func recordEffects(c *cobra.Command, h *local.Host) {
	h.By = asker()
	if os.Geteuid() != 0 {
		h.Host.Journal = &optionalJournal{Journal: h.Journal, notes: c.ErrOrStderr()}
	}
}

// closeInterrupted records an end for effects that killed processes left open.
// If it fails, the command still continues.
func closeInterrupted(c *cobra.Command, h *local.Host) {
	if err := h.CloseInterrupted(c.Context()); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "numavisor: note: %v\n", err)
	}
}

// asker names the user who runs this command.
func asker() string {
	return linux.Live.LoginUser(os.Getuid(), os.Getenv("SUDO_UID"), func(uid string) (string, error) {
		u, err := user.LookupId(uid)
		if err != nil {
			return "", err
		}
		return u.Username, nil
	})
}

// optionalJournal is the journal of a user without privileges. Such a user may
// run commands and bind processes of their own, but may not write the host's
// journal: a note then says that nothing is recorded. Any other failure refuses
// the effect, as it does for root.
type optionalJournal struct {
	record.Journal
	notes io.Writer
	once  sync.Once
}

// Append adds an entry if the user has the permission.
func (j *optionalJournal) Append(e journal.Entry) error {
	err := j.Journal.Append(e)
	if errors.Is(err, fs.ErrPermission) {
		j.once.Do(func() {
			fmt.Fprintf(
				j.notes,
				"numavisor: note: not recorded in the journal in %s, which only root may write; --records names "+
					"another folder\n",
				j.Folder,
			)
		})
		return nil
	}
	return err
}

// Entries returns the entries that the user may read.
func (j *optionalJournal) Entries() ([]journal.Entry, error) {
	entries, err := j.Journal.Entries()
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	return entries, err
}
