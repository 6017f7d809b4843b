package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// QEMU is a QEMU process with the properties of its VM, from its arguments.
type QEMU struct {
	PID     int
	Name    string // of -name; "qemu-PID" if none was given
	UUID    string // of -uuid
	VCPUs   int
	Memory  topology.Bytes
	Devices []string // host PCI addresses assigned by vfio
	// Libvirt means that libvirt started it, and reports it itself.
	Libvirt bool
}

// QEMU's own defaults.
const (
	defaultVCPUs  = 1
	defaultMemory = 128 * topology.MiB
)

// QEMUs finds the QEMU processes that run a VM, ascending by process id. It
// leaves out those that end meanwhile; arguments that it cannot read or parse
// are gaps. It reads the arguments only of processes that may be a QEMU.
func (a *Arguments) QEMUs() ([]QEMU, []inventory.Gap, error) {
	pids, err := a.root.programs()
	if err != nil {
		return nil, nil, fmt.Errorf("looking for QEMU processes: %w", err)
	}
	var found []QEMU
	var gaps []inventory.Gap
	for _, pid := range pids {
		if !a.root.mayBeQEMU(pid) {
			continue
		}
		args, err := a.Of(pid)
		if errors.Is(err, ErrNoAnswer) {
			if _, ofLibvirt, _ := a.root.guestTopOf(pid); ofLibvirt {
				found = append(found, QEMU{PID: pid, Name: fmt.Sprintf("qemu-%d", pid), Libvirt: true})
			} else {
				gaps = append(gaps, unreadArguments(pid, fmt.Sprintf("qemu-%d", pid), err))
			}
			continue
		}
		if err != nil || !IsQEMU(args) {
			continue
		}
		q, err := ParseQEMU(args)
		q.PID = pid
		if q.Name == "" {
			q.Name = fmt.Sprintf("qemu-%d", pid)
		}
		if err != nil {
			gaps = append(gaps, unreadArguments(pid, q.Name, err))
		}
		found = append(found, q)
	}
	return found, gaps, nil
}

func unreadArguments(pid int, name string, why error) inventory.Gap {
	return inventory.Gap{Kind: inventory.ConfigUnread, Object: inventory.GuestRef(name),
		What: fmt.Sprintf("arguments of QEMU process %d", pid), Why: why.Error()}
}

// IsQEMU reports whether arguments are those of a QEMU that runs a VM;
// libvirt's probes for capabilities (-machine none) do not.
func IsQEMU(args []string) bool {
	if len(args) == 0 {
		return false
	}
	program := path.Base(args[0])
	if !strings.HasPrefix(program, "qemu-system-") && program != "qemu-kvm" && program != "kvm" {
		return false
	}
	for option, value := range options(args) {
		if first, _, _ := strings.Cut(value, ","); option == "machine" || option == "M" {
			if first == "none" || first == "type=none" {
				return false
			}
		}
	}
	return true
}

// ParseQEMU reads name, UUID, vCPUs, memory and assigned devices from QEMU's
// arguments. The error names what could not be parsed; the rest is filled.
func ParseQEMU(args []string) (QEMU, error) {
	q := QEMU{VCPUs: defaultVCPUs, Memory: defaultMemory}
	var firstErr error
	for option, value := range options(args) {
		var err error
		switch option {
		case "name":
			q.Name = property(value, "guest", true)
		case "uuid":
			q.UUID = value
		case "smp":
			q.VCPUs, err = parseSMP(value)
		case "m":
			q.Memory, err = parseMemory(value)
		case "device":
			if host := vfioHost(value); host != "" {
				q.Devices = append(q.Devices, host)
			}
		case "object":
			// only libvirt gives a VM a key for its secrets, and it gives one
			// to every VM
			q.Libvirt = q.Libvirt || strings.Contains(value, "masterKey0")
		}
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("-%s %s: %w", option, abbreviate(value), err)
		}
	}
	return q, firstErr
}

// options yields QEMU's options with their values; QEMU accepts both -name and
// --name.
func options(args []string) func(yield func(option, value string) bool) {
	return func(yield func(option, value string) bool) {
		for i := 1; i < len(args); i++ {
			option, dashed := strings.CutPrefix(args[i], "-")
			if !dashed {
				continue
			}
			value := ""
			if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				value = args[i+1]
				i++
			}
			if !yield(strings.TrimPrefix(option, "-"), value) {
				return
			}
		}
	}
}

// property returns key's value of "a,key=b"; QEMU doubles a comma that belongs
// to a value. implied says that a first word without "=" is key's value.
func property(text, key string, implied bool) string {
	const comma = "\x00" // a byte that no argument can contain
	for i, part := range strings.Split(strings.ReplaceAll(text, ",,", comma), ",") {
		k, v, assigned := strings.Cut(part, "=")
		if assigned && k == key {
			return strings.ReplaceAll(v, comma, ",")
		}
		if !assigned && i == 0 && implied {
			return strings.ReplaceAll(part, comma, ",")
		}
	}
	return ""
}

// parseSMP gives the vCPUs that are present at start: "4", "cpus=2,maxcpus=8",
// or the product of a topology.
func parseSMP(text string) (int, error) {
	if cpus := property(text, "cpus", true); cpus != "" {
		return positive(cpus)
	}
	count, given := 1, false
	for _, level := range []string{"drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"} {
		if n := property(text, level, false); n != "" {
			each, err := positive(n)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", level, err)
			}
			count, given = count*each, true
		}
	}
	if most := property(text, "maxcpus", false); !given && most != "" {
		return positive(most)
	}
	if count < 1 || count > mostVCPUs {
		return 0, fmt.Errorf("%d vCPUs are not from 1 to %d", count, mostVCPUs)
	}
	return count, nil
}

// mostVCPUs bounds what hostile arguments can claim; QEMU allows 4096.
const mostVCPUs = 1 << 16

func positive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostVCPUs {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", abbreviate(text), mostVCPUs)
	}
	return n, nil
}

// parseMemory reads -m: "512" are MiB, suffixes are binary.
func parseMemory(text string) (topology.Bytes, error) {
	size := property(text, "size", true)
	if size == "" {
		return defaultMemory, nil
	}
	if _, err := strconv.ParseUint(size, 10, 64); err == nil {
		size += "M"
	}
	return topology.ParseBytes(size)
}

// vfioHost returns the host address of an assigned PCI device, in either form
// of -device: properties or JSON.
func vfioHost(text string) string {
	if strings.HasPrefix(text, "{") {
		var d struct{ Driver, Host string }
		if json.Unmarshal([]byte(text), &d) != nil || !strings.HasPrefix(d.Driver, "vfio-pci") {
			return ""
		}
		return fullAddress(d.Host)
	}
	if driver, _, _ := strings.Cut(text, ","); !strings.HasPrefix(strings.TrimPrefix(driver, "driver="), "vfio-pci") {
		return ""
	}
	return fullAddress(property(text, "host", false))
}

// fullAddress adds the PCI domain that QEMU lets one leave out.
func fullAddress(address string) string {
	if strings.Count(address, ":") == 1 {
		return "0000:" + address
	}
	return address
}
