package libvirt

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// maxVCPUs limits how many vCPUs a domain may claim (QEMU's own limit is 4096).
const maxVCPUs = maxListID

// Domain is the part of a domain XML that placing the guest needs.
type Domain struct {
	Name string
	UUID string
	Type string // hypervisor: "kvm", "qemu", "xen", ...
	// Config are the XML's settings that affect locality.
	Config inventory.Config
	// Intent is the stored spec and placement; nil if Numavisor has never bound
	// the guest.
	Intent *Metadata
	// IntentError is why a stored intent cannot be read; Intent is nil then.
	IntentError error
	// BootMemory is Config.Memory without memory devices: the sum of the cells.
	BootMemory topology.Bytes
	IOThreads  []int          // ids
	declared   topology.Bytes // <memory> without memory devices: BootMemory of a guest without cells
	// Confidential guests (launchSecurity: SEV, SNP, TDX) have memory that cannot move.
	Confidential bool
}

// Guest is the domain in an inventory's list while it does not run.
func (d Domain) Guest() inventory.Guest {
	g := inventory.Guest{Name: d.Name, UUID: d.UUID, Hypervisor: guest.LibvirtQEMU, State: "shutoff", Config: d.Config}
	if d.Type == "xen" {
		g.Hypervisor = guest.Xen
	}
	if d.IntentError != nil {
		g.IntentError = d.IntentError.Error()
	}
	g.Can = inventory.CapabilitiesOf(g.Hypervisor)
	if d.Intent != nil {
		g.SetIntent(*d.Intent)
	}
	return g
}

// ParseDomain reads the XML of a domain, running or not, from any author. It
// ignores unknown elements; a known one with a bad value is an error that names
// it.
func ParseDomain(xml []byte) (Domain, error) {
	doc, err := parse(xml)
	if err != nil {
		return Domain{}, err
	}
	return doc.domain()
}

func (doc *document) domain() (Domain, error) {
	r := &reader{root: doc.root, cpuLists: map[string]topology.CPUSet{}, nodeLists: map[string]topology.NodeSet{}}
	d := Domain{
		Name:         r.root.child("name").trimmed(),
		UUID:         r.root.child("uuid").trimmed(),
		Type:         r.root.attr("type"),
		Confidential: r.root.child("launchSecurity") != nil,
	}
	if holder := metadataElement(r.root); holder != nil {
		d.Intent, d.IntentError = parseMetadata(holder)
	}
	for _, step := range []func(*Domain) error{
		r.vcpus, r.memory, r.cells, r.ioThreads, r.pins, r.numaTune, r.backing, r.devices,
	} {
		if err := step(&d); err != nil {
			return Domain{}, fmt.Errorf("domain %.60q: %w", d.Name, err)
		}
	}
	return d, nil
}

// reader reads the parts of one domain in turn.
type reader struct {
	root *element
	// Lists read before: thousands of pins name the same few sets.
	cpuLists  map[string]topology.CPUSet
	nodeLists map[string]topology.NodeSet
}

func (r *reader) vcpus(d *Domain) error {
	d.Config.VCPUs = 1
	v := r.root.child("vcpu")
	if v == nil {
		return nil
	}
	n, err := strconv.Atoi(v.trimmed())
	if err != nil || n < 1 || n > maxVCPUs {
		return fmt.Errorf("vcpu: %.20q is not a number from 1 to %d", v.trimmed(), maxVCPUs)
	}
	d.Config.VCPUs = n
	d.Config.AutoPlacement = v.attr("placement") == "auto"
	return nil
}

// memory reads <memory>; cells, which are read later, take precedence as in
// libvirt.
func (r *reader) memory(d *Domain) error {
	m := r.root.child("memory")
	if m == nil {
		return nil
	}
	total, err := parseMemory("memory", m.trimmed(), m.attr("unit"))
	if err != nil {
		return err
	}
	devices, err := memoryDevices(r.root)
	if err != nil {
		return err
	}
	if total < devices {
		return fmt.Errorf("memory: %v is less than its memory devices have, %v", total, devices)
	}
	d.Config.Memory, d.BootMemory, d.declared = total, total-devices, total-devices
	return nil
}

func (r *reader) ioThreads(d *Domain) error {
	count := 0
	if text := r.root.child("iothreads").trimmed(); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxListID {
			return fmt.Errorf("iothreads: %.20q is not a number from 0 to %d", text, maxListID)
		}
		count = n
	}
	taken := map[int]bool{}
	for _, e := range r.root.child("iothreadids").all("iothread") {
		id, err := strconv.Atoi(e.attr("id"))
		if err != nil || id < 1 {
			return fmt.Errorf("iothreadids: id=%.20q is not a number from 1", e.attr("id"))
		}
		if !taken[id] {
			taken[id] = true
			d.IOThreads = append(d.IOThreads, id)
		}
	}
	for id := 1; len(d.IOThreads) < count; id++ { // libvirt numbers the rest itself
		if !taken[id] {
			d.IOThreads = append(d.IOThreads, id)
		}
	}
	d.Config.IOThreads = len(d.IOThreads)
	return nil
}

// pins reads cputune. A cpuset on <vcpu> applies to every thread without a pin
// of its own.
func (r *reader) pins(d *Domain) error {
	c := &d.Config
	tune := r.root.child("cputune")
	fallback, err := r.cpus("vcpu cpuset", r.root.child("vcpu").attr("cpuset"))
	if err != nil {
		return err
	}
	if c.AutoPlacement {
		fallback = topology.CPUSet{} // libvirt ignores it
	}
	pins := map[guest.VCPUID]topology.CPUSet{}
	if !fallback.IsEmpty() {
		for v := range c.VCPUs {
			pins[guest.VCPUID(v)] = fallback
		}
	}
	for _, e := range tune.all("vcpupin") {
		v, err := strconv.Atoi(e.attr("vcpu"))
		if err != nil || v < 0 || v >= maxVCPUs {
			return fmt.Errorf("vcpupin: vcpu=%.20q is not a number from 0 to %d", e.attr("vcpu"), maxVCPUs-1)
		}
		set, err := r.cpus("vcpupin cpuset", e.attr("cpuset"))
		if err != nil {
			return err
		}
		if v < c.VCPUs {
			pins[guest.VCPUID(v)] = set
		}
	}
	if len(pins) > 0 {
		c.Pins = pins
	}
	c.EmulatorPin = fallback
	if e := tune.child("emulatorpin"); e != nil {
		if c.EmulatorPin, err = r.cpus("emulatorpin cpuset", e.attr("cpuset")); err != nil {
			return err
		}
	}
	return r.ioThreadPins(d, tune, fallback)
}

func (r *reader) ioThreadPins(d *Domain, tune *element, fallback topology.CPUSet) error {
	pins := map[int]topology.CPUSet{}
	if !fallback.IsEmpty() {
		for _, id := range d.IOThreads {
			pins[id] = fallback
		}
	}
	for _, e := range tune.all("iothreadpin") {
		id, err := strconv.Atoi(e.attr("iothread"))
		if err != nil || id < 0 {
			return fmt.Errorf("iothreadpin: iothread=%.20q is not a number", e.attr("iothread"))
		}
		if pins[id], err = r.cpus("iothreadpin cpuset", e.attr("cpuset")); err != nil {
			return err
		}
	}
	if len(pins) > 0 {
		d.Config.IOThreadPins = pins
	}
	return nil
}

func (r *reader) cpus(field, text string) (topology.CPUSet, error) {
	return remembered(r.cpuLists, field, text)
}

// remembered reads a list that may have been read before; "" is the empty set.
func remembered[ID ~int](seen map[string]topology.Set[ID], field, text string) (topology.Set[ID], error) {
	if strings.TrimSpace(text) == "" {
		return topology.Set[ID]{}, nil
	}
	if set, known := seen[text]; known {
		return set, nil
	}
	set, err := parseList[ID](field, text)
	if err == nil {
		seen[text] = set
	}
	return set, err
}

func (r *reader) numaTune(d *Domain) error {
	e := r.root.child("numatune")
	memory, memnodes := e.child("memory"), e.all("memnode")
	if memory == nil && len(memnodes) == 0 {
		return nil
	}
	t := &inventory.NUMATune{}
	if memory != nil {
		t.Mode = modeOr(memory.attr("mode"))
		t.Auto = memory.attr("placement") == "auto"
		d.Config.AutoPlacement = d.Config.AutoPlacement || t.Auto
		var err error
		if t.Nodes, err = r.nodes("numatune nodeset", memory.attr("nodeset")); err != nil {
			return err
		}
	}
	for _, m := range memnodes {
		cell, err := cellID("memnode cellid", m.attr("cellid"))
		if err != nil {
			return err
		}
		set, err := r.nodes("memnode nodeset", m.attr("nodeset"))
		if err != nil {
			return err
		}
		t.Cells = append(t.Cells, inventory.CellTune{Cell: cell, Mode: modeOr(m.attr("mode")), Nodes: set})
	}
	d.Config.NUMATune = t
	return nil
}

// modeOr gives a numatune mode; libvirt's default is strict.
func modeOr(mode string) string {
	if mode == "" {
		return string(guest.MemoryStrict)
	}
	return mode
}

func (r *reader) nodes(field, text string) (topology.NodeSet, error) {
	return remembered(r.nodeLists, field, text)
}

func cellID(field, text string) (guest.CellID, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= maxListID {
		return 0, fmt.Errorf("%s=%.20q is not a number from 0 to %d", field, text, maxListID-1)
	}
	return guest.CellID(n), nil
}

func (r *reader) backing(d *Domain) error {
	c := &d.Config
	b := r.root.child("memoryBacking")
	c.Source = "anonymous"
	if s := b.child("source").attr("type"); s != "" {
		c.Source = s
	}
	c.Shared = c.Shared || b.child("access").attr("mode") == "shared"
	c.Locked = b.child("locked") != nil
	c.Immediate = b.child("allocation").attr("mode") == "immediate"
	huge := b.child("hugepages")
	if huge == nil {
		return nil
	}
	sizes, err := hugePageSizes(huge)
	if err != nil {
		return err
	}
	c.PageSize = sizes[0]
	if c.Source != "memfd" {
		c.Source = "hugetlbfs"
	}
	return nil
}

// hugePageSizes returns the requested page sizes, largest first, at least one.
// Without a size libvirt uses the host's default: 2 MiB on x86 and most others.
func hugePageSizes(huge *element) ([]topology.Bytes, error) {
	const usual = 2 * topology.MiB
	var largest topology.Bytes
	sizes := []topology.Bytes{}
	for _, p := range huge.all("page") {
		size, err := parseMemory("hugepages page size", p.attr("size"), p.attr("unit"))
		if err != nil {
			return nil, err
		}
		if size > largest {
			largest = size
			sizes = append([]topology.Bytes{size}, sizes...)
		} else if size != largest {
			sizes = append(sizes, size)
		}
	}
	if len(sizes) == 0 {
		sizes = append(sizes, usual)
	}
	return sizes, nil
}
