package server

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The records of VMs, of their statuses and of reports as the state has them: what a record has for itself, and
// pointers to what it has in common with others. With 100,000 VMs they take a fifth of the memory of the records
// themselves, which value makes again. None of them is changed in place.

// vmRecord is the record of a VM.
type vmRecord struct {
	revision, generation int64
	name, host           string
	created              time.Time
	rest                 *fleet.VM        // without what is here
	placement            *guest.Placement // without a name
	disks                []vmDisk
	migration            *fleet.Migration
	// specNamed, placementNamed say that the spec and the placement have the VM's name.
	specNamed, placementNamed bool
}

// vmDisk is a disk of a VM.
type vmDisk struct {
	path around
	rest *fleet.Disk // without the path
}

// around is a text that may have the name of its VM in it: files and control groups of VMs are named after them. The
// rest is the same for many.
type around struct {
	rest string // of the text without the name
	at   int    // where the name is; -1: nowhere
}

// around returns a text as parts of it.
func (p *parts) around(text, name string) around {
	out := around{text, -1}
	if i := strings.LastIndex(text, name); i >= 0 && name != "" {
		out = around{text[:i] + text[i+len(name):], i}
	}
	p.word(&out.rest)
	return out
}

// text returns the text itself.
func (a around) text(name string) string {
	if a.at < 0 {
		return a.rest
	}
	return a.rest[:a.at] + name + a.rest[a.at:]
}

// vmID is a UUID: its bytes, or a text that is none in the usual form.
type vmID struct {
	bytes [16]byte
	other string
	is    bool // the bytes count
}

func idOf(text string) (id vmID) {
	plain := strings.ReplaceAll(text, "-", "")
	if len(plain) != 2*len(id.bytes) {
		return vmID{other: text}
	}
	if _, err := hex.Decode(id.bytes[:], []byte(plain)); err != nil {
		return vmID{other: text}
	}
	if id.is = true; id.text() != text {
		return vmID{other: text}
	}
	return id
}

// text returns the UUID itself.
func (id *vmID) text() string {
	if !id.is {
		return id.other
	}
	b := id.bytes
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ofVM returns the record of a VM, which takes v over.
func (p *parts) ofVM(v fleet.VM, revision int64) *vmRecord {
	p.word(&v.Host)
	r := &vmRecord{revision: revision, generation: v.Generation, name: v.Name, host: v.Host, created: v.Created,
		migration: v.Migration, specNamed: v.Spec.Name == v.Name, placementNamed: v.Placement.Guest == v.Name}
	if r.specNamed {
		v.Spec.Name = ""
	}
	if r.placementNamed {
		v.Placement.Guest = ""
	}
	r.placement = p.placements.one(v.Placement)
	for _, d := range v.Machine.Disks {
		of := vmDisk{path: p.around(d.Path, v.Name)}
		d.Path = ""
		of.rest = p.disks.one(d)
		r.disks = append(r.disks, of)
	}
	r.disks = slices.Clip(r.disks)
	v.Name, v.Host, v.Created, v.Generation, v.Migration = "", "", time.Time{}, 0, nil
	v.Placement, v.Machine.Disks = guest.Placement{}, nil
	r.rest = p.vms.one(v)
	return r
}

// value returns the record itself.
func (r *vmRecord) value() fleet.VM {
	v := *r.rest
	v.Name, v.Host, v.Created, v.Generation, v.Migration = r.name, r.host, r.created, r.generation, r.migration
	v.Placement = *r.placement
	if r.specNamed {
		v.Spec.Name = r.name
	}
	if r.placementNamed {
		v.Placement.Guest = r.name
	}
	for _, d := range r.disks {
		disk := *d.rest
		disk.Path = d.path.text(r.name)
		v.Machine.Disks = append(v.Machine.Disks, disk)
	}
	return v
}

// hosts returns the hosts that have the VM: its own one, and the target of its migration. Of nil there are none.
func (r *vmRecord) hosts() (out []string) {
	if r != nil && r.host != "" {
		out = append(out, r.host)
	}
	if r != nil && r.migration != nil {
		out = append(out, r.migration.To)
	}
	return out
}

// statusRecord is what a host reports of a VM.
type statusRecord struct {
	revision, generation, sequence int64
	name, host                     string
	since                          time.Time
	rest                           *fleet.VMStatus  // without what is here
	placement                      *guest.Placement // without a name
	migration                      *fleet.MigrationStatus
	named                          bool // the placement has the VM's name
}

// ofStatus returns the record of a status.
func (p *parts) ofStatus(s fleet.VMStatus, revision int64) statusRecord {
	p.word(&s.Host)
	r := statusRecord{revision: revision, generation: s.Generation, sequence: s.Sequence, name: s.Name, host: s.Host,
		since: s.Since, migration: s.Migration, named: s.Placement.Guest == s.Name}
	if r.named {
		s.Placement.Guest = ""
	}
	r.placement = p.placements.one(s.Placement)
	s.Name, s.Host, s.Generation, s.Sequence, s.Since, s.Migration = "", "", 0, 0, time.Time{}, nil
	s.Placement = guest.Placement{}
	r.rest = p.statuses.one(s)
	return r
}

// value returns the status itself.
func (r *statusRecord) value() fleet.VMStatus {
	s := *r.rest
	s.Name, s.Host, s.Generation, s.Sequence, s.Since = r.name, r.host, r.generation, r.sequence, r.since
	s.Migration, s.Placement = r.migration, *r.placement
	if r.named {
		s.Placement.Guest = r.name
	}
	return s
}

// reportRecord is the report of a host.
type reportRecord struct {
	revision int64
	fleet.Report
	guests []guestRecord // instead of Inventory.Guests
}

// guestRecord is a VM in a report.
type guestRecord struct {
	name, run string
	uuid      vmID
	cgroup    around
	pid       int
	rest      *inventory.Guest // without what is here
	memory    []nodeMemory     // ascending by node
	spec      *guest.Spec      // without a name; nil: none
	placement *guest.Placement // the same
	// specNamed, placementNamed say that they have the VM's name.
	specNamed, placementNamed bool
	measured                  bool // there is memory, if only of no node
}

// nodeMemory is the memory of a VM on a node. A map takes four times as much.
type nodeMemory struct {
	node  topology.NodeID
	bytes topology.Bytes
}

// ofReport returns the record of a report.
func (p *parts) ofReport(r fleet.Report, revision int64) *reportRecord {
	h := &r.Inventory
	h.Topology = p.topology(h.Topology)
	h.Kernel = *p.kernels.one(h.Kernel)
	p.word(&r.Program)
	out := &reportRecord{revision: revision, guests: make([]guestRecord, 0, len(h.Guests))}
	for i := range h.Guests {
		out.guests = append(out.guests, p.ofGuest(h.Guests[i]))
	}
	h.Guests = nil
	out.Report = r
	return out
}

func (p *parts) ofGuest(g inventory.Guest) guestRecord {
	r := guestRecord{name: g.Name, uuid: idOf(g.UUID), run: g.Run, pid: g.PID,
		cgroup: p.around(g.Seen.CgroupPath, g.Name),
		memory: make([]nodeMemory, 0, len(g.Seen.MemoryByNode)), measured: g.Seen.MemoryByNode != nil}
	for _, node := range slices.Sorted(maps.Keys(g.Seen.MemoryByNode)) {
		r.memory = append(r.memory, nodeMemory{node, g.Seen.MemoryByNode[node]})
	}
	if g.Spec != nil {
		spec := *g.Spec
		if r.specNamed = spec.Name == g.Name; r.specNamed {
			spec.Name = ""
		}
		r.spec = p.specs.one(spec)
	}
	if g.Placement != nil {
		placement := *g.Placement
		if r.placementNamed = placement.Guest == g.Name; r.placementNamed {
			placement.Guest = ""
		}
		r.placement = p.placements.one(placement)
	}
	g.Name, g.UUID, g.Run, g.PID, g.Spec, g.Placement = "", "", "", 0, nil, nil
	g.Seen.CgroupPath, g.Seen.MemoryByNode = "", nil
	r.rest = p.guests.one(g)
	return r
}

// value returns the VM; unless it is to be whole, without its UUID, its control group, and the names in its spec and
// placement: the choice of hosts does not read them.
func (r *guestRecord) value(whole bool) inventory.Guest {
	g := *r.rest
	g.Name, g.Run, g.PID, g.Spec, g.Placement = r.name, r.run, r.pid, r.spec, r.placement
	if whole {
		g.UUID, g.Seen.CgroupPath = r.uuid.text(), r.cgroup.text(r.name)
	}
	if r.measured {
		g.Seen.MemoryByNode = make(topology.MemoryByNode, len(r.memory))
		for _, m := range r.memory {
			g.Seen.MemoryByNode[m.node] = m.bytes
		}
	}
	if whole && r.specNamed {
		spec := *r.spec
		spec.Name = r.name
		g.Spec = &spec
	}
	if whole && r.placementNamed {
		placement := *r.placement
		placement.Guest = r.name
		g.Placement = &placement
	}
	return g
}

// inventory returns the reported inventory. See guestRecord.value for whole.
func (r *reportRecord) inventory(whole bool) *inventory.Host {
	out := r.Inventory
	out.Guests = make([]inventory.Guest, 0, len(r.guests)+1)
	for i := range r.guests {
		out.Guests = append(out.Guests, r.guests[i].value(whole))
	}
	return &out
}

// guest returns a VM of the report; ok is false if it has none of the name.
func (r *reportRecord) guest(name string) (g inventory.Guest, ok bool) {
	for i := range r.guests {
		if r.guests[i].name == name {
			return r.guests[i].value(true), true
		}
	}
	return g, false
}
