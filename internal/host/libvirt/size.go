package libvirt

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// memoryUnits are libvirt's scaled integers (virScaleInteger): KB is 1000
// bytes, K and KiB are 1024.
var memoryUnits = map[string]uint64{
	"b": 1, "bytes": 1, "byte": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15, "eb": 1e18,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50, "e": 1 << 60,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50, "eib": 1 << 60,
}

// parseMemory reads an amount with its unit attribute; without a unit libvirt assumes KiB.
func parseMemory(field, value, unit string) (topology.Bytes, error) {
	if unit == "" {
		unit = "KiB"
	}
	scale, known := memoryUnits[strings.ToLower(unit)]
	if !known {
		return 0, fmt.Errorf("%s: unit %.20q is unknown; allowed: b, KB, KiB, MB, MiB, GB, GiB, ...", field, unit)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %.40q is not an amount of memory", field, value)
	}
	high, low := bits.Mul64(n, scale)
	if high != 0 {
		return 0, fmt.Errorf("%s: %.40s %s is more than 16 EiB", field, value, unit)
	}
	return topology.Bytes(low), nil
}

// kib writes an amount as libvirt's default unit.
func kib(b topology.Bytes) string { return strconv.FormatUint(uint64(b/topology.KiB), 10) }
