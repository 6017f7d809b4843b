package guestagent

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
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
	bound    bool         // the kernel's threads on them cannot be moved
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
	// kicked are parked vCPUs that the kernel goes on waking to balance for busy ones. It notes a vCPU for that when it
	// goes idle, and forgets it at the first tick while it runs something, but for a vCPU in a partition.
	kicked guest.VCPUs
	// ran is for how long the agent has run on the vCPU at.
	ran time.Duration
	// others are vCPUs in a partition of something else in the guest.
	others guest.VCPUs
	// groups are cgroups with programs: the limit of each; empty: none. The agent is in the one of this name.
	groups map[string]string
	agent  string
	// strayed says that the agent's threads may run on all vCPUs: kernels before 6.2 forget the affinity of the threads
	// in a cgroup whose CPUs change.
	strayed bool
	// emptied is a cgroup whose programs have ended.
	emptied string
}

// withPrograms is a guest whose programs are in cgroups, as systemd has them.
func withPrograms(n int) *fake {
	f := newFake(n)
	f.groups, f.agent = map[string]string{"system.slice": "", "user.slice": ""}, "system.slice"
	f.files[limitsFile] = ""
	return f
}

// effective are the vCPUs that a cgroup may use.
func (f *fake) effective(limit string) guest.VCPUs {
	all := f.online().Without(f.apart()).Without(f.others)
	if set, _ := guest.ParseList(limit); set.And(all) != (guest.VCPUs{}) {
		return set.And(all)
	}
	return all
}

// forPrograms are the vCPUs that some program may use.
func (f *fake) forPrograms() (s guest.VCPUs) {
	if len(f.groups) == 0 {
		return f.effective("")
	}
	for name, limit := range f.groups {
		if name != f.emptied {
			s = s.Or(f.effective(limit))
		}
	}
	return s
}

// foreign is the cgroup of the partition of something else.
const foreign = "machine.slice"

// readGroup reads a file of a cgroup with programs.
func (f *fake) readGroup(name string) (text string, ok bool) {
	if path.Dir(name) == systemRoot+"/"+foreign && f.others != (guest.VCPUs{}) {
		if path.Base(name) == "cpuset.cpus.partition" {
			return "root", true
		}
		return f.others.String(), true
	}
	limit, ok := f.groups[path.Base(path.Dir(name))]
	if !ok || path.Dir(path.Dir(name)) != systemRoot {
		return "", false
	}
	switch path.Base(name) {
	case "cpuset.cpus":
		return limit, true
	case "cpuset.cpus.partition":
		return "member", true
	case "cgroup.events":
		if f.emptied == path.Base(path.Dir(name)) {
			return "populated 0\nfrozen 0", true
		}
		return "populated 1\nfrozen 0", true
	}
	return f.effective(limit).String(), true
}

// limitGroup writes the limit of a cgroup. A partition must not have the CPUs of another cgroup's limit.
func (f *fake) limitGroup(name, text string) (ok bool, err error) {
	group := path.Base(path.Dir(name))
	if _, ok = f.groups[group]; !ok || path.Base(name) != "cpuset.cpus" {
		return false, nil
	}
	if strings.TrimSpace(text) == "" && f.groups[group] != "" && f.emptied != group {
		return true, syscall.ENOSPC // it has programs
	}
	f.groups[group] = strings.TrimSpace(text)
	set, _ := guest.ParseList(text)
	if set.And(f.others) != (guest.VCPUs{}) {
		f.others = guest.VCPUs{}
	}
	for _, id := range set.And(f.apart()).IDs() {
		f.kinds[id] = "root invalid (Cpu list in cpuset.cpus not exclusive)"
	}
	return true, nil
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
	if text, ok := f.readGroup(name); ok {
		return text, nil
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
	if ok, err := f.limitGroup(name, text); ok {
		return err
	}
	if name == systemRoot+"/cgroup.procs" && text == "0" {
		f.agent, f.strayed = "", true
		return nil
	}
	if pid, ok := strings.CutPrefix(name+"="+text, systemRoot+"/"+ownPrograms+"/cgroup.procs="); ok {
		f.files[systemRoot+"/cgroup.procs"] = strings.Replace(f.files[systemRoot+"/cgroup.procs"], pid+"\n", "", 1)
		return nil
	}
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
	for _, limit := range f.groups {
		if set, _ := guest.ParseList(limit); text == "root" && set.Has(id) {
			text = "root invalid (Cpu list in cpuset.cpus not exclusive)"
		}
	}
	if before := f.kinds[id]; text == "root" && strings.HasPrefix(before, "root invalid") {
		text = before
	}
	if text == "root" && !f.partitions {
		text = "root invalid (no reason)"
	}
	f.strayed = true
	idle := !f.forPrograms().Has(id)
	f.kicked = f.kicked.Without(guest.Of(id))
	if f.kinds[id] = text; text == "root" {
		f.unseen.Add(id)
		if f.at != id || idle && f.ran < 10*time.Millisecond { // the longest tick of Linux
			f.kicked.Add(id)
		}
	}
	return nil
}

func (f *fake) mkdir(name string) error {
	if f.noGroups {
		return syscall.EROFS
	}
	if name == systemRoot+"/"+ownPrograms {
		f.groups = map[string]string{ownPrograms: ""}
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
	if folder == systemRoot {
		names = append(slices.AppendSeq(names, maps.Keys(f.groups)), foreign)
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
		if !f.bound {
			delete(f.busy, id)
		}
	}
}

func (f *fake) stand(id int) {
	f.ran = 0
	if f.at = -1; f.effective(f.groups[f.agent]).Has(id) {
		f.at, f.unseen = id, f.unseen.Without(guest.Of(id))
	}
}

func (f *fake) runFor(d time.Duration) {
	f.ran += d
	f.own += d
}

func (f *fake) leave() { f.at = -1 }

func (f *fake) goHome() { f.at, f.strayed = -1, false }

func (f *fake) mountCgroup(string) error { return syscall.EPERM }

func (f *fake) ownTime() time.Duration { return f.own }

func (f *fake) wait(d time.Duration) { f.now += d }
