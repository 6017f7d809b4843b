package guestagent

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// fake is a guest's kernel with cgroup v2 as cpuset partitions and CPU hotplug
// behave (Documentation/admin-guide/cgroup-v2.rst), and with faults to choose.
type fake struct {
	present  guest.VCPUs
	off      guest.VCPUs // offline
	files    map[string]string
	now, own time.Duration
	busy     map[int]bool // vCPUs that run something even when parked
	sweeps   int
	writes   []string
	noGroups bool
	// inPlace says whether the list of a partition may change while it is in effect;
	// partitions whether there are any; hotplug whether CPUs can go offline.
	inPlace, partitions, hotplug bool
	// balanced are the vCPUs that are in the scheduling domains of the guest's threads: the others get no work.
	balanced guest.VCPUs
}

func newFake(n int) *fake {
	f := &fake{files: map[string]string{}, busy: map[int]bool{}, inPlace: true, partitions: true,
		hotplug: true}
	for id := range n {
		f.present.Add(id)
	}
	f.files["/sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory"
	f.files["/proc/sys/kernel/random/boot_id"] = "0123abcd-4567"
	f.files["/proc/irq/default_smp_affinity"] = "ff"
	f.files["/proc/irq/9/smp_affinity_list"] = f.present.String()
	f.files[workqueues] = "ff"
	f.files[expedite] = "0"
	f.files[epochFile] = ""
	return f
}

const group = systemRoot + partition

func (f *fake) online() guest.VCPUs { return f.present.Without(f.off) }

// stat makes a file of one line per vCPU; a vCPU runs if it is busy or not parked.
func (f *fake) stat(field, unit int) string {
	var b strings.Builder
	for _, id := range f.online().IDs() {
		figures := make([]int, 9)
		if f.busy[id] {
			figures[field] = int(f.now) / unit
		}
		fmt.Fprintf(&b, "cpu%d %s\n", id, strings.Trim(fmt.Sprint(figures), "[]"))
	}
	return b.String()
}

func (f *fake) read(name string) (string, error) {
	switch name {
	case cpuFolder + "present":
		return f.present.String(), nil
	case cpuFolder + "online":
		return f.online().String(), nil
	case "/proc/schedstat":
		return f.stat(6, 1), nil
	case "/proc/stat":
		return f.stat(0, int(tick)), nil
	case group + "/cpuset.cpus.effective":
		list, _ := guest.ParseList(f.files[group+"/cpuset.cpus"])
		return list.And(f.online()).String(), nil
	}
	text, ok := f.files[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return text, nil
}

func (f *fake) write(name, text string) error {
	f.writes = append(f.writes, name+"="+text)
	kind := group + "/cpuset.cpus.partition"
	var id int
	switch n, _ := fmt.Sscanf(name, cpuFolder+"cpu%d/online", &id); {
	case n == 1 && (id == 0 || !f.hotplug):
		return syscall.EBUSY
	case n == 1 && text == "0":
		f.off.Add(id)
		return nil
	case n == 1:
		f.off = f.off.Without(guest.Of(id))
		return nil
	case name == kind && text != "member" && (f.files[group+"/cpuset.cpus"] == "" || !f.partitions):
		text += " invalid (no reason)"
	case name == group+"/cpuset.cpus" && f.files[kind] != "member" && !f.inPlace:
		f.files[kind] = "isolated invalid (Cpu list in cpuset.cpus not exclusive)"
	}
	if _, ok := f.files[name]; !ok {
		return fs.ErrNotExist
	}
	f.files[name] = text
	// Before Linux 6.6 the kernel rebuilds the domains for these changes only.
	if name == kind || name == group+"/cpuset.cpus" && f.files[kind] == "root" {
		f.balanced = f.online()
		if now := f.files[kind]; now == "root" || now == "isolated" {
			parked, _ := guest.ParseList(f.files[group+"/cpuset.cpus"])
			f.balanced = f.online().Without(parked)
		}
	}
	return nil
}

func (f *fake) mkdir(name string) error {
	if f.noGroups {
		return syscall.EROFS
	}
	if _, ok := f.files[group+"/cpuset.cpus.partition"]; name == group && !ok {
		f.files[group+"/cpuset.cpus.partition"], f.files[group+"/cpuset.cpus"] = "member", ""
	}
	return nil
}

func (f *fake) list(folder string) ([]string, error) {
	var names []string
	for name := range f.files {
		if path.Dir(path.Dir(name)) == folder {
			names = append(names, path.Base(path.Dir(name)))
		}
	}
	return names, nil
}

func (f *fake) moveThreads(from, _ guest.VCPUs) {
	f.sweeps++
	for _, id := range from.IDs() {
		delete(f.busy, id)
	}
}

func (f *fake) mountCgroup(string) error { return syscall.EPERM }

func (f *fake) ownTime() time.Duration { return f.own }

func (f *fake) wait(d time.Duration) { f.now += d }
