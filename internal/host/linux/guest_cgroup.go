package linux

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
)

// GuestCgroup is where libvirt keeps the threads of one VM.
type GuestCgroup struct {
	// Top holds the VM as a whole; memory.* and hugetlb.* are counted here.
	// With systemd it is the VM's scope, else *.libvirt-qemu.
	Top Cgroup
	// Threads is the group right above the thread groups: Top, or "libvirt"
	// below it with systemd since libvirt 7.1.
	Threads   Cgroup
	Emulator  Cgroup
	VCPUs     map[guest.VCPUID]Cgroup
	IOThreads map[int]Cgroup
}

// GuestCgroupOf finds the groups of the VM that a process belongs to; ok is
// false if the process is not in a group laid out by libvirt. It goes by the
// process id and not the VM's name, since libvirt shortens and escapes names.
func (r Root) GuestCgroupOf(pid int) (g GuestCgroup, ok bool, err error) {
	top, ok, err := r.guestTopOf(pid)
	if err != nil || !ok {
		return GuestCgroup{}, false, err
	}
	g, err = top.guest()
	return g, err == nil, err
}

// guestTopOf is GuestCgroupOf for callers that need only the group of the VM as
// a whole; it lists no folder.
func (r Root) guestTopOf(pid int) (top Cgroup, ok bool, err error) {
	at, err := r.CgroupOf(pid)
	if err != nil {
		return Cgroup{}, false, err
	}
	for ; at.Path != "/"; at = at.Parent() {
		if _, isGuest := guestIDOf(at.Name()); isGuest {
			return at, true, nil
		}
	}
	return Cgroup{}, false, nil
}

// guestIDOf reads the libvirt id from the name of a VM's top group. Two layouts:
//
//	machine.slice/machine-qemu\x2dID\x2dNAME.scope/libvirt/{emulator,vcpuN,iothreadN}   with systemd
//	machine/qemu-ID-NAME.libvirt-qemu/{emulator,vcpuN,iothreadN}                        without
func guestIDOf(name string) (id int, ok bool) {
	if text, scope := strings.CutSuffix(name, ".scope"); scope {
		name = strings.ReplaceAll(strings.TrimPrefix(text, "machine-"), `\x2d`, "-")
	} else if text, plain := strings.CutSuffix(name, ".libvirt-qemu"); plain {
		name = text
	} else {
		return 0, false
	}
	rest, isQEMU := strings.CutPrefix(name, "qemu-")
	number, _, _ := strings.Cut(rest, "-")
	id, err := strconv.Atoi(number)
	return id, isQEMU && err == nil && id > 0
}

// guest sorts the groups below a VM's top group by the threads in them.
func (c Cgroup) guest() (GuestCgroup, error) {
	g := GuestCgroup{Top: c, Threads: c, VCPUs: map[guest.VCPUID]Cgroup{}, IOThreads: map[int]Cgroup{}}
	if inner := c.Child("libvirt"); inner.Exists() {
		g.Threads = inner
	}
	leaves, err := g.Threads.Children()
	if err != nil {
		return GuestCgroup{}, err
	}
	for _, leaf := range leaves {
		name := filepath.Base(leaf.Path)
		if n, ok := numbered(name, "vcpu"); ok {
			g.VCPUs[guest.VCPUID(n)] = leaf
		} else if n, ok := numbered(name, "iothread"); ok {
			g.IOThreads[n] = leaf
		} else if name == "emulator" {
			g.Emulator = leaf
		}
	}
	return g, nil
}

// numbered splits "vcpu12" into its prefix and number.
func numbered(name, prefix string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// ThreadGroups returns the groups that hold threads: emulator first, then
// vCPUs and I/O threads by number.
func (g GuestCgroup) ThreadGroups() []Cgroup {
	var groups []Cgroup
	if g.Emulator.Path != "" {
		groups = append(groups, g.Emulator)
	}
	groups = append(groups, inOrder(g.VCPUs)...)
	return append(groups, inOrder(g.IOThreads)...)
}
