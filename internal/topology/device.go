package topology

// DeviceKindOf returns the kind for a PCI class code of 24 bits: base class,
// subclass, programming interface (PCI Code and ID Assignment, section 1).
func DeviceKindOf(class uint32) DeviceKind {
	switch base, sub := class>>16&0xff, class>>8&0xff; {
	case base == 0x01 && sub == 0x08:
		return DeviceNVMe
	case base == 0x01, base == 0x0c && sub == 0x04: // Fibre Channel counts as a serial bus
		return DeviceStorage
	case base == 0x02, base == 0x0c && sub == 0x06: // so does old InfiniBand
		return DeviceNIC
	case base == 0x03:
		return DeviceGPU
	}
	return DeviceOther
}

// IsBridge reports whether a PCI class code is that of a bridge, which no guest is given.
func IsBridge(class uint32) bool { return class>>16&0xff == 0x06 }
