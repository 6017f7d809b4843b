package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// evidence saves what explains a run that failed, before its processes and disks are gone: the VMs as each server shows
// them, the store's files, and the goroutines of all processes, which they write to their logs.
func (f *aFleet) evidence() error {
	folder := filepath.Join(f.folder, "evidence")
	err := os.MkdirAll(folder, 0o750)
	for i := range f.clients {
		err = errors.Join(err, f.saveVMs(i, filepath.Join(folder, serverName(i)+"-vms.json")))
	}
	for _, p := range f.all() {
		p.Signal(unix.SIGQUIT) // Go's runtime prints all goroutines, and the process ends
	}
	time.Sleep(time.Second) // until the dumps are written
	for _, p := range f.places() {
		err = errors.Join(err, saveStore(f.data(p.Name), filepath.Join(folder, p.Name)))
	}
	return err
}

// saveVMs saves the VMs as a server shows them, or its error.
func (f *aFleet) saveVMs(server int, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	vms, err := f.clients[server].VMs(ctx, fleetapi.Filter{})
	text, unreadable := json.MarshalIndent(vms, "", "  ")
	if err != nil {
		text = []byte(err.Error())
	}
	return errors.Join(unreadable, os.WriteFile(path, text, 0o600))
}

// saveStore copies the files of a member's store: etcd's are member/snap/db and member/wal.
func saveStore(from, to string) error {
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "member" || !e.IsDir() {
			return err
		}
		if err := os.CopyFS(to, os.DirFS(path)); err != nil {
			return err
		}
		return fs.SkipDir
	})
	if err != nil {
		return fmt.Errorf("saving the store in %s: %w", from, err)
	}
	return nil
}
