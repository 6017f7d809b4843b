package linux

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

const pciFolder = "sys/bus/pci/devices"

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// devices reads /sys/bus/pci/devices, without the bridges.
func (t *tree) devices(addresses []string, nodes []topology.Node) []topology.Device {
	var devices []topology.Device
	for _, address := range addresses {
		if !pciAddress.MatchString(address) {
			t.gap("%s: not a PCI address such as 0000:3b:00.0; left out", path.Join(pciFolder, address))
			continue
		}
		folder := path.Join(pciFolder, address)
		text, ok := t.text(folder + "/class")
		if !ok {
			t.gap("device %s: no class; left out", address)
			continue
		}
		class, err := strconv.ParseUint(text, 0, 24)
		if err != nil {
			t.gap("device %s: class %q is not a PCI class code; left out", address, abbreviate(text))
			continue
		}
		if topology.IsBridge(uint32(class)) {
			continue
		}
		devices = append(devices, topology.Device{
			Address: address,
			Kind:    topology.DeviceKindOf(uint32(class)),
			Node:    t.deviceNode(folder, nodes),
			Names:   t.deviceNames(folder),
			Driver:  t.driver(folder),
		})
	}
	return devices
}

// deviceNode reads numa_node; where that is missing or -1, it takes the node of
// the CPUs that the kernel calls local, if all are of one node.
func (t *tree) deviceNode(folder string, nodes []topology.Node) topology.NodeID {
	if id, ok := t.number(folder + "/numa_node"); ok && id >= 0 {
		return topology.NodeID(id)
	}
	near, _ := t.cpuList(folder+"/local_cpulist", folder+"/local_cpus")
	found := topology.NoNode
	for _, n := range nodes {
		if !n.CPUs.Intersects(near) {
			continue
		}
		if found != topology.NoNode {
			return topology.NoNode
		}
		found = n.ID
	}
	return found
}

// deviceNames returns the device's usual names: "eth0", "nvme0", "card1",
// "vda".
func (t *tree) deviceNames(folder string) []string {
	var names []string
	for _, entry := range t.names(folder) {
		switch {
		case entry == "net", entry == "nvme", entry == "infiniband", entry == "block":
			names = append(names, t.names(path.Join(folder, entry))...)
		case entry == "drm":
			for _, card := range t.names(path.Join(folder, entry)) {
				if strings.HasPrefix(card, "card") {
					names = append(names, card)
				}
			}
		case strings.HasPrefix(entry, "virtio"):
			names = append(names, t.names(path.Join(folder, entry, "net"))...)
			names = append(names, t.names(path.Join(folder, entry, "block"))...)
		}
	}
	return names
}

// driver reads the name at the end of the link "driver"; it does not follow the
// link.
func (t *tree) driver(folder string) string {
	link, err := t.root.Readlink(folder + "/driver")
	if err != nil {
		return ""
	}
	return abbreviate(path.Base(link))
}
