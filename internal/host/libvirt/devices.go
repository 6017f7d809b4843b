package libvirt

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// devices collects the devices assigned through vfio, which pins all guest
// memory: PCI addresses ("0000:3b:00.0"), and mediated devices as "mdev:UUID".
func (r *reader) devices(d *Domain) error {
	for _, e := range r.root.path("devices").every() {
		source := e.child("source")
		address := source.child("address")
		var pci bool
		switch {
		case e.name == "hostdev" && e.attr("type") == "mdev" && address.attr("uuid") != "":
			d.Config.Devices = append(d.Config.Devices, "mdev:"+address.attr("uuid"))
			continue
		case e.name == "hostdev":
			pci = e.attr("type") == "pci"
		case e.name == "interface":
			pci = e.attr("type") == "hostdev" && address.attr("type") != "usb"
		case e.name == "disk": // QEMU's own NVMe driver works through vfio
			pci = e.attr("type") == "nvme"
		}
		if !pci || address == nil {
			continue
		}
		text, err := pciAddress(address)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		d.Config.Devices = append(d.Config.Devices, text)
	}
	slices.Sort(d.Config.Devices)
	return nil
}

// every returns all children in libvirt's own namespace. It may be called on nil.
func (e *element) every() []*element {
	if e == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.children), func(c *element) bool { return c.prefix != "" })
}

// pciAddress reads domain, bus, slot and function, each decimal, octal or 0x hex.
func pciAddress(e *element) (string, error) {
	var part [4]uint64
	for i, f := range []struct {
		name string
		most uint64
	}{{"domain", 0xffffffff}, {"bus", 0xff}, {"slot", 0x1f}, {"function", 7}} {
		text := e.attr(f.name)
		if text == "" && f.name == "domain" {
			text = "0"
		}
		v, err := strconv.ParseUint(text, 0, 64)
		if err != nil || v > f.most {
			return "", fmt.Errorf("PCI address: %s=%.20q is not a number from 0 to %#x", f.name, text, f.most)
		}
		part[i] = v
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", part[0], part[1], part[2], part[3]), nil
}

// hotMemory are the memory devices, whose sizes <memory> includes.
func hotMemory(root *element) []*element { return root.path("devices").all("memory") }

// memoryDevices sums their sizes.
func memoryDevices(root *element) (topology.Bytes, error) {
	var sum topology.Bytes
	for _, e := range hotMemory(root) {
		size := e.path("target", "size")
		if size == nil {
			continue
		}
		b, err := parseMemory("memory device size", size.trimmed(), size.attr("unit"))
		if err != nil {
			return 0, err
		}
		if b > math.MaxUint64-sum {
			return 0, errors.New("memory devices have more than 16 EiB")
		}
		sum += b
	}
	return sum, nil
}

// tiedToCells lists everything in the domain that refers to guest cells by
// number, so that other cells would break it.
func tiedToCells(root *element) []string {
	var found []string
	for _, e := range root.path("devices").every() {
		if e.path("target", "node") != nil {
			found = append(found,
				fmt.Sprintf("<%s model='%s'> on cell %s", e.name, e.attr("model"), e.path("target", "node").trimmed()))
		}
	}
	numa := root.path("cpu", "numa")
	if numa.child("interconnects") != nil {
		found = append(found, "<interconnects> between cells")
	}
	for _, c := range numa.all("cell") {
		for _, a := range []string{"memAccess", "discard"} {
			if c.attr(a) != "" {
				found = append(found, fmt.Sprintf("%s='%s' of cell %s", a, c.attr(a), c.attr("id")))
			}
		}
		if c.child("cache") != nil {
			found = append(found, "<cache> of cell "+c.attr("id"))
		}
	}
	if root.child("maxMemory") != nil {
		found = append(found, "<maxMemory>, which needs cells")
	}
	return found
}

// hostNodesOfDevices checks that memory devices with host nodes of their own
// stay within the guest's nodes.
func hostNodesOfDevices(root *element, within topology.NodeSet) error {
	for _, e := range hotMemory(root) {
		mask := e.path("source", "nodemask").trimmed()
		if mask == "" {
			continue
		}
		set, err := parseList[topology.NodeID]("memory device nodemask", mask)
		if err != nil {
			return err
		}
		if !set.SubsetOf(within) {
			return &ContradictionError{
				Field: "memory device nodemask", XML: set.String(), Placement: "nodes " + within.String(),
				Remedy: "remove the nodemask, or give the placement these nodes",
			}
		}
	}
	return nil
}

func list(parts []string) string { return strings.Join(parts, "; ") }
