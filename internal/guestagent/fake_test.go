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
	// partitions says whether there are any; hotplug whether CPUs can go offline.
	partitions, hotplug bool
	// kinds are the kinds of partitions by vCPU.
	kinds map[int]string
	// unseen are vCPUs that the kernel does not have among the idle ones: each went idle alone in a partition, without
	// scheduling domains, and has run nothing since. at is where the agent runs; -1: anywhere.
	unseen guest.VCPUs
	at     int
	// kicked says that a vCPU was parked while it was idle: the kernel goes on waking it to balance for busy ones.
	kicked bool
	// others are vCPUs in a partition of something else in the guest.
	others guest.VCPUs
}

func newFake(n int) *fake {
	f := &fake{files: map[string]string{}, busy: map[int]bool{}, partitions: true, hotplug: true,
		kinds: map[int]string{}, at: -1}
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

// kindFile is the file with the kind of a vCPU's partition.
func kindFile(id int) string {
	return fmt.Sprintf("%s%s%d/cpuset.cpus.partition", systemRoot, partition, id)
}

// apart are the vCPUs in partitions of their own.
func (f *fake) apart() (s guest.VCPUs) {
	for id, kind := range f.kinds {
		if kind == "root" {
			s.Add(id)
		}
	}
	return s
}

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
	case systemRoot + "/cpuset.cpus.effective":
		return f.online().Without(f.apart()).Without(f.others).String(), nil
	}
	var id int
	if n, _ := fmt.Sscanf(name, systemRoot+partition+"%d/", &id); n == 1 && path.Base(name) == "cpuset.cpus.partition" {
		if kind, ok := f.kinds[id]; ok {
			return kind, nil
		}
		return "", fs.ErrNotExist
	}
	text, ok := f.files[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return text, nil
}

func (f *fake) write(name, text string) error {
	f.writes = append(f.writes, name+"="+text)
	var id int
	if n, _ := fmt.Sscanf(name, systemRoot+partition+"%d/", &id); n == 1 {
		return f.change(id, path.Base(name), text)
	}
	switch n, _ := fmt.Sscanf(name, cpuFolder+"cpu%d/online", &id); {
	case n == 1 && (id == 0 || !f.hotplug):
		return syscall.EBUSY
	case n == 1 && text == "0":
		f.off.Add(id)
		return nil
	case n == 1:
		f.off = f.off.Without(guest.Of(id))
		return nil
	}
	if _, ok := f.files[name]; !ok {
		return fs.ErrNotExist
	}
	f.files[name] = text
	return nil
}

// change changes a vCPU's partition. The kernel decides when a vCPU goes idle whether it is among those that get work
// and that balance for busy ones; one that was idle before stays among them.
func (f *fake) change(id int, file, text string) error {
	if _, ok := f.kinds[id]; !ok {
		return fs.ErrNotExist
	}
	if file != "cpuset.cpus.partition" {
		return nil
	}
	if text == "root" && !f.partitions {
		text = "root invalid (no reason)"
	}
	if f.kinds[id] = text; text == "root" {
		f.unseen.Add(id)
		if f.at != id {
			f.kicked = true
		}
	}
	return nil
}

func (f *fake) mkdir(name string) error {
	if f.noGroups {
		return syscall.EROFS
	}
	var id int
	if n, _ := fmt.Sscanf(name, systemRoot+partition+"%d", &id); n == 1 && f.kinds[id] == "" {
		f.kinds[id] = "member"
	}
	return nil
}

func (f *fake) list(folder string) ([]string, error) {
	var names []string
	for id := range f.kinds {
		if folder == systemRoot {
			names = append(names, fmt.Sprintf("%s%d", partition[1:], id))
		}
	}
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

func (f *fake) stand(id int) {
	if f.at = -1; !f.apart().Has(id) {
		f.at, f.unseen = id, f.unseen.Without(guest.Of(id))
	}
}

func (f *fake) leave() { f.at = -1 }

func (f *fake) mountCgroup(string) error { return syscall.EPERM }

func (f *fake) ownTime() time.Duration { return f.own }

func (f *fake) wait(d time.Duration) { f.now += d }
