package guestagent

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/api/guest"
)

const (
	// limitsFile holds the limits that others have set, for the next start of the agent: by then the kernel has the
	// agent's own. It is gone when the guest boots, as are the cgroups.
	limitsFile = "/run/numavisor-guest/limits"
	// ownPrograms is the cgroup of programs that are in none. A guest with systemd has no such programs.
	ownPrograms = "numavisor-programs"
	// noLimit clears a cgroup's list of CPUs: a write of no bytes would do nothing. Linux refuses it where programs
	// are (ENOSPC of validate_change in kernel/cgroup/cpuset.c).
	noLimit = "\n"
)

// programs are the top-level cgroups, in which the programs of the guest are. A limit on the vCPUs that these may use
// is the fastest way to take a vCPU from all programs: the kernel moves their threads and changes nothing else
// (update_cpumasks_hier in kernel/cgroup/cpuset.c rebuilds scheduling domains for partitions only). Kernel threads are
// in the root, and have no limit.
type programs struct {
	k    kernel
	root string // the folder of all cgroups; empty: there are none
	// groups have programs and no partition. others are limits that the guest's administrator has set, by name.
	groups []string
	others map[string]string
	// set are the limits as the agent last wrote them; no entry: the kernel has that of others.
	set map[string]string
	// foreign are the vCPUs of partitions that are not the agent's: a list with one of them would end its partition.
	foreign guest.VCPUs
}

// find lists the cgroups that have programs, and reads limits that others have changed since.
func (p *programs) find() {
	if p.root == "" {
		return
	}
	names, err := p.k.list(p.root)
	if err != nil {
		return
	}
	if p.others == nil {
		p.load()
	}
	p.groups, p.foreign = nil, guest.VCPUs{}
	for _, name := range names {
		folder := p.root + "/" + name
		kind, err := p.k.read(folder + "/cpuset.cpus.partition")
		if err != nil || strings.HasPrefix("/"+name, partition) {
			continue
		}
		if kind != "member" {
			if set, err := p.list(name, "cpuset.cpus.effective"); err == nil {
				p.foreign = p.foreign.Or(set)
			}
			continue
		}
		if events, err := p.k.read(folder + "/cgroup.events"); err != nil || !strings.Contains(events, "populated 1") {
			p.forget(name)
			continue
		}
		if _, err := p.now(name); err == nil {
			p.groups = append(p.groups, name)
		}
	}
}

// forget takes back the limit of a cgroup that has no programs any more: the kernel makes no partition of a vCPU that
// is in it.
func (p *programs) forget(name string) {
	if _, own := p.set[name]; own {
		_ = p.k.write(p.root+"/"+name+"/cpuset.cpus", cmp.Or(p.others[name], noLimit))
		delete(p.set, name)
	}
}

// now returns the limit of a cgroup. One that the agent did not write is that of others.
func (p *programs) now(name string) (limit string, err error) {
	if limit, err = p.k.read(p.root + "/" + name + "/cpuset.cpus"); err != nil {
		return "", err
	}
	if own, ok := p.set[name]; ok && own == limit {
		return limit, nil
	}
	delete(p.set, name)
	if before, known := p.others[name]; !known || limit != before {
		p.others[name] = limit
		p.save()
	}
	return limit, nil
}

func (p *programs) list(name, file string) (guest.VCPUs, error) {
	text, err := p.k.read(p.root + "/" + name + "/" + file)
	if err != nil {
		return guest.VCPUs{}, err
	}
	return guest.ParseList(text)
}

// load reads what the agent before this one has stored.
func (p *programs) load() {
	p.others, p.set = map[string]string{}, map[string]string{}
	text, err := p.k.read(limitsFile)
	if err != nil {
		return
	}
	var stored map[string]string
	if json.Unmarshal([]byte(text), &stored) != nil {
		return
	}
	for name, limit := range stored {
		p.others[name] = limit
		if now, err := p.k.read(p.root + "/" + name + "/cpuset.cpus"); err == nil && now != limit {
			p.set[name] = now
		}
	}
}

func (p *programs) save() {
	if text, err := json.Marshal(p.others); err == nil {
		_ = p.k.write(limitsFile, string(text)) // a later agent would take this one's limits for those of others
	}
}

// gather moves programs that are in the root into a cgroup of their own. This one moves to the root, where no limit
// is: its thread must be on a vCPU of which it makes a partition.
func (p *programs) gather() {
	_ = p.k.write(p.root+"/cgroup.procs", "0") // the writer; without it, the kernel wakes parked vCPUs more often
	all, err := p.k.read(p.root + "/cgroup.procs")
	if err != nil {
		return
	}
	own, _ := p.k.read("/proc/self/stat")
	own, _, _ = strings.Cut(own, " ")
	made := false
	for _, pid := range strings.Fields(all) {
		stat, err := p.k.read("/proc/" + pid + "/stat")
		if flags, ok := taskFlags(stat); err != nil || !ok || flags&kernelThread != 0 || pid == own {
			continue
		}
		if !made && p.k.mkdir(p.root+"/"+ownPrograms) != nil {
			return
		}
		made = true
		_ = p.k.write(p.root+"/"+ownPrograms+"/cgroup.procs", pid) // it may have ended
	}
}

// limit lets programs use only these vCPUs, of those that others allow them. A cgroup that is allowed none of them may
// use all of them, as the kernel does with one whose CPUs have gone.
func (p *programs) limit(present, used guest.VCPUs) {
	if own := used.Without(p.foreign); own != (guest.VCPUs{}) {
		used = own
	}
	for _, name := range p.groups {
		now, err := p.now(name)
		if err != nil {
			continue // its programs have ended
		}
		own := present.Without(p.foreign)
		if p.others[name] != "" {
			if own, err = guest.ParseList(p.others[name]); err != nil {
				continue
			}
		}
		want := cmp.Or(own.And(used).String(), used.String())
		if own.Without(used) != (guest.VCPUs{}) {
			p.write(name, now, want)
		} else if !p.write(name, now, p.others[name]) {
			p.write(name, now, own.String())
		}
	}
}

// write changes the limit of a cgroup.
func (p *programs) write(name, now, limit string) (ok bool) {
	if limit == now {
		return true
	}
	if p.k.write(p.root+"/"+name+"/cpuset.cpus", cmp.Or(limit, noLimit)) != nil {
		return false
	}
	p.set[name] = limit
	return true
}

// inUse are the vCPUs that programs may use. ok is false where there are none of which the kernel says so.
func (p *programs) inUse() (s guest.VCPUs, ok bool) {
	for _, name := range p.groups {
		if set, err := p.list(name, "cpuset.cpus.effective"); err == nil { // else its programs have ended
			s, ok = s.Or(set), true
		}
	}
	return s, ok
}

// allowed are the vCPUs that programs may use but for the agent's limits.
func (p *programs) allowed(present guest.VCPUs) (s guest.VCPUs) {
	for _, name := range p.groups {
		set, err := guest.ParseList(p.others[name])
		if err != nil || set == (guest.VCPUs{}) {
			return present.Without(p.foreign)
		}
		s = s.Or(set)
	}
	return s.And(present).Without(p.foreign)
}

// taskFlags returns the flags of a task from a line of /proc/PID/stat.
func taskFlags(stat string) (flags uint64, ok bool) {
	_, rest, ok := strings.Cut(stat, ") ") // the name before it may hold spaces
	fields := strings.Fields(rest)
	if !ok || len(fields) < 7 {
		return 0, false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return flags, err == nil
}
