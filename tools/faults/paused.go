package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numavisor/numavisor/internal/guest"
)

// Once all of a VM's memory is copied, the source pauses it: the file paused/SOURCE/VM says so. Then the mark of the
// running VM changes, and the source removes its copy. Between these steps the connection may break, or a process may
// end: the source then has a paused copy, and does not know whether the VM runs on the target.

// pauseTime is for how long a VM is paused before its mark changes, and before its source removes its copy, at most.
const pauseTime = 50 * time.Millisecond

// breakPoint is when the connection of both hypervisors breaks in a hand-over.
type breakPoint int

const (
	noBreak breakPoint = iota
	beforeMark
	afterMark
)

// drawBreak draws a break for one hand-over in five.
func drawBreak() breakPoint {
	switch rand.IntN(10) {
	case 0:
		return beforeMark
	case 1:
		return afterMark
	}
	return noBreak
}

// errBroken is how the source sees it when the connection breaks while the VM is paused.
var errBroken = errors.New("the connection of the simulated libvirtds broke after the last page")

// pausedPath is the file of a paused copy. A VM may have one on several hosts: it goes on to a third one.
func pausedPath(shared, host, name string) string { return filepath.Join(shared, "paused", host, name) }

// isPaused reports whether a VM of this host is a copy that is paused for its migration.
func (h *hypervisor) isPaused(name string) (bool, error) {
	_, err := os.Stat(pausedPath(h.shared, h.name, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// pause pauses a VM whose memory is on its target.
func (h *hypervisor) pause(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if vm := h.vms[name]; vm == nil || !vm.Running {
		return fmt.Errorf("VM %s does not run any more: %w", name, guest.ErrRefused)
	}
	if on, err := h.runsOn(name); err != nil {
		return err
	} else if on != h.name {
		return violation(h.shared, fmt.Sprintf("VM %s runs on host %s and on %s too", name, h.name, on))
	}
	path := pausedPath(h.shared, h.name, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// handOver lets a VM run on the target from now on, and removes it here.
func (h *hypervisor) handOver(ctx context.Context, name, to string) error {
	if err := h.pause(name); err != nil {
		return err
	}
	time.Sleep(rand.N(pauseTime))
	at := noBreak
	if h.breaks != nil {
		at = h.breaks()
	}
	if at == beforeMark {
		return errBroken
	}
	if err := h.changeMark(name, to); err != nil {
		return err
	}
	time.Sleep(rand.N(pauseTime))
	if at == afterMark {
		return errBroken
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left(context.WithoutCancel(ctx), name)
}

// changeMark lets a paused VM run on the target, unless that does not answer.
func (h *hypervisor) changeMark(name, to string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, libvirtd := h.at(scheme + to); libvirtd.before() != nil {
		return errBroken
	}
	if paused, err := h.isPaused(name); err != nil || !paused {
		return errors.Join(err, violation(h.shared, fmt.Sprintf("VM %s is not paused on %s any more while it migrates",
			name, h.name)))
	}
	if err := renameio.WriteFile(h.markPath(name), []byte(to), 0o600, renameio.WithTempDir(h.shared)); err != nil {
		return err
	}
	return appendTo(handedOver(h.shared), name+"\n")
}

// left removes a VM that runs on another host.
func (h *hypervisor) left(ctx context.Context, name string) error {
	delete(h.vms, name)
	return errors.Join(h.Host.Remove(ctx, name), h.save(), h.unpause(name))
}

// unpause ends that a copy is paused, if there is one.
func (h *hypervisor) unpause(name string) error { return endPaused(h.shared, h.name, name) }

func endPaused(shared, host, name string) error {
	err := os.Remove(pausedPath(shared, host, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Resume implements migrate.Port.
func (h *hypervisor) Resume(_ context.Context, name string) error {
	return h.libvirtd.ask(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		on, err := h.runsOn(name)
		if err != nil {
			return err
		}
		if on != h.name {
			return violation(h.shared, fmt.Sprintf("VM %s was resumed on %s and runs on %q", name, h.name, on))
		}
		return h.unpause(name)
	})
}

// DiscardSuspended implements migrate.Port.
func (h *hypervisor) DiscardSuspended(ctx context.Context, name string) error {
	switch p, err := h.Presence(ctx, name); {
	case err != nil || p == guest.Absent:
		return err
	case p == guest.Stored:
		return h.Undefine(ctx, name)
	case p != guest.Suspended:
		return fmt.Errorf("VM %s is %s: %w", name, p, guest.ErrRefused)
	}
	return h.libvirtd.ask(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		on, err := h.runsOn(name)
		if err != nil {
			return err
		}
		if on == h.name {
			return violation(h.shared, fmt.Sprintf("the only copy of VM %s, on %s, was removed", name, h.name))
		}
		return h.left(context.WithoutCancel(ctx), name)
	})
}

// stillPaused returns the name of a VM that is paused; empty if no VM is.
func stillPaused(shared string) (string, error) {
	files, err := filepath.Glob(pausedPath(shared, "*", "*"))
	if err != nil || len(files) == 0 {
		return "", err
	}
	return filepath.Base(files[0]), nil
}
