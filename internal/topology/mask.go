package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseMask reads a bit mask as the kernel (cpumap) and hwloc (cpuset) write
// it: groups of 32 bits in hexadecimal, the highest first, separated by
// commas, each with or without "0x"; an empty group is 0. hwloc's "0xf...f",
// all ids from some id on, is refused: no host has that many.
func ParseMask[ID ~int](s string) (Set[ID], error) {
	groups := strings.Split(strings.TrimSpace(s), ",")
	if len(groups)*32 > maxID+1 {
		return Set[ID]{}, fmt.Errorf("mask %q: more than %d bits", abbreviate(s), maxID+1)
	}
	words := make([]uint64, len(groups)/2+1)
	for i, g := range groups {
		g = strings.TrimPrefix(strings.TrimSpace(g), "0x")
		if g == "" {
			continue
		}
		v, err := strconv.ParseUint(g, 16, 32)
		if err != nil {
			return Set[ID]{}, fmt.Errorf("mask %q: %q is not a group of 32 bits in hexadecimal", abbreviate(s),
				abbreviate(g))
		}
		low := len(groups) - 1 - i
		words[low/2] |= v << (32 * (low % 2))
	}
	return trimmed[ID](words), nil
}
