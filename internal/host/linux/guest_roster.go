package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// guestGroups are the groups below which libvirt has its VMs, with systemd and without.
func guestGroups() []string { return []string{"machine.slice", "machine"} }

// GuestCPUTime returns the CPU time that all VMs of libvirt have used, with those that have ended (cpu.stat of the
// group above them). It costs one file. The error says that there is no such group, or that the kernel counts no time
// for it.
func (r Root) GuestCPUTime() (used time.Duration, err error) {
	mount, err := r.CgroupMount()
	if err != nil {
		return 0, err
	}
	found := false
	for _, folder := range guestGroups() {
		data, err := os.ReadFile(filepath.Join(mount, folder, "cpu.stat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var stat CPUStat
		if err == nil {
			stat, err = ParseCPUStat(data)
		}
		if err != nil {
			return 0, fmt.Errorf("CPU time of all VMs: %w", err)
		}
		used, found = used+stat.Usage, true
	}
	if !found {
		return 0, fmt.Errorf("CPU time of all VMs: %w: no group of libvirt's", fs.ErrNotExist)
	}
	return used, nil
}

// GuestRoster names the groups of the VMs that libvirt runs, in one word that
// changes when a VM starts or ends: libvirt never uses a VM's id twice. It
// costs one folder listing. It is empty where libvirt runs no VMs or has no
// groups.
func (r Root) GuestRoster() string {
	mount, err := r.CgroupMount()
	if err != nil {
		return ""
	}
	var names []string
	for _, folder := range guestGroups() {
		entries, err := os.ReadDir(mount + "/" + folder)
		if err != nil {
			continue // the other layout
		}
		for _, e := range entries {
			if _, ok := guestIDOf(e.Name()); ok {
				names = append(names, e.Name())
			}
		}
	}
	return strings.Join(names, "\n")
}
