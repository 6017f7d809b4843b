package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// stored is a fleet whose records were written for an earlier run: to write those of 10,000 hosts takes minutes.
type stored struct {
	Address, Token string
	Hosts, VMs     int
}

func aboutFile(folder string) string { return filepath.Join(folder, "about.json") }

// use takes over the records of an earlier run; found is false if the folder has none.
func (s *served) use(ctx context.Context, folder string, d *drawn) (found bool, err error) {
	text, err := os.ReadFile(aboutFile(folder))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	var of stored
	if err == nil {
		err = json.Unmarshal(text, &of)
	}
	if err != nil {
		return false, fmt.Errorf("reading the records of an earlier run: %w", err)
	}
	if of.Hosts != d.hosts || of.VMs != d.vms {
		return false, fmt.Errorf("-records %s: it has %d hosts and %d VMs; name another folder", folder, of.Hosts,
			of.VMs)
	}
	if err := copyFolder(ctx, filepath.Join(folder, "server"), s.data()); err != nil {
		return false, err
	}
	s.address, s.token, s.sample = of.Address, of.Token, d
	s.ca, err = os.ReadFile(filepath.Join(s.data(), "ca.pem"))
	return err == nil, err
}

// save copies the records for later runs.
func (s *served) save(ctx context.Context, folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := copyFolder(ctx, s.data(), filepath.Join(folder, "server")); err != nil {
		return err
	}
	text, err := json.Marshal(stored{s.address, s.token, s.sample.hosts, s.sample.vms})
	if err != nil {
		return err
	}
	return os.WriteFile(aboutFile(folder), text, 0o600)
}

func copyFolder(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s to %s: %w: %s", from, to, err, out)
	}
	return nil
}
