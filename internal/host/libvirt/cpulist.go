package libvirt

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxListID bounds ids in lists: libvirt's VIR_DOMAIN_CPUMASK_LEN.
const maxListID = 16384

// parseList reads libvirt's form of CPU and node lists: "0-7,^3,12". Parts
// apply from left to right; "^" removes one id (virBitmapParse).
func parseList[ID ~int](field, text string) (topology.Set[ID], error) {
	var in [maxListID / 64]uint64
	for part := range strings.SplitSeq(text, ",") {
		span, without := strings.CutPrefix(strings.TrimSpace(part), "^")
		low, high, ranged := strings.Cut(span, "-")
		first, err := listID(low)
		last := first
		if err == nil && ranged {
			last, err = listID(high)
		}
		switch {
		case err != nil:
			return topology.Set[ID]{}, fmt.Errorf("%s=%.80q: %w", field, text, err)
		case last < first:
			return topology.Set[ID]{}, fmt.Errorf("%s=%.80q: range %.20q runs backwards", field, text, part)
		case without && ranged:
			return topology.Set[ID]{}, fmt.Errorf("%s=%.80q: %.20q: ^ removes single ids, not ranges", field, text,
				part)
		}
		if without {
			in[first/64] &^= 1 << (first % 64)
			continue
		}
		for word := first / 64; word <= last/64; word++ {
			in[word] |= bitsFrom(first-word*64) &^ bitsFrom(last+1-word*64)
		}
	}
	var ids []ID
	for i, word := range in {
		for ; word != 0; word &= word - 1 {
			ids = append(ids, ID(i*64+bits.TrailingZeros64(word)))
		}
	}
	return topology.SetOf(ids...), nil
}

// bitsFrom returns a word with bit n and all above it set; n may lie outside of the word.
func bitsFrom(n int) uint64 {
	if n >= 64 {
		return 0
	}
	return ^uint64(0) << max(n, 0)
}

func listID(s string) (int, error) {
	v, err := strconv.ParseUint(strings.TrimSpace(s), 10, 32)
	if err != nil || v >= maxListID {
		return 0, fmt.Errorf("%.20q is not a number from 0 to %d", s, maxListID-1)
	}
	return int(v), nil
}
