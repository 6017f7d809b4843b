package linux

import (
	"os"
	"strings"
)

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
	for _, folder := range []string{"machine.slice", "machine"} {
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
