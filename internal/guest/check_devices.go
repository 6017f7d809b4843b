package guest

import (
	"fmt"
	"regexp"
	"strings"
)

// pciAddress is domain:bus:slot.function in hexadecimal, as lspci -D writes
// it; the domain may have 8 digits (Hyper-V, VMD) and may be left out.
var pciAddress = regexp.MustCompile(`^([0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// fullAddress gives the kernel's spelling: lower case, with domain.
func fullAddress(address string) string {
	a := strings.ToLower(strings.TrimSpace(address))
	if pciAddress.MatchString(a) && strings.Count(a, ":") == 1 {
		a = "0000:" + a
	}
	return a
}

func (c *checker) devices() {
	first := map[string]int{}
	for i, d := range c.spec.Devices {
		at := fmt.Sprintf("devices[%d]", i)
		if !pciAddress.MatchString(d.Address) {
			c.fail(at+".address", d.Address, "a PCI address such as 0000:3b:00.0 (see lspci -D)")
		}
		if before, twice := first[d.Address]; twice {
			c.fail(at+".address", d.Address, "each device once; devices[%d] is the same", before)
		} else {
			first[d.Address] = i
		}
		if d.Passthrough && c.spec.IsMovable() {
			c.fail(at+".passthrough", d.Passthrough,
				"false, or movable false: vfio pins all of the VM's memory, which then cannot move")
		}
	}
}
