package guest

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

const wordBits = 64

// VCPUs is a set of vCPUs below MaxVCPUs. Values compare with ==; the zero value
// is the empty set. In JSON it is a hexadecimal mask, vCPU 0 in the last digit.
type VCPUs [MaxVCPUs / wordBits]uint64

// Of returns a set. vCPUs out of range are left out.
func Of(ids ...int) VCPUs {
	var s VCPUs
	for _, id := range ids {
		s.Add(id)
	}
	return s
}

// Add adds a vCPU, unless it is out of range.
func (s *VCPUs) Add(id int) {
	if id >= 0 && id < MaxVCPUs {
		s[id/wordBits] |= 1 << (id % wordBits)
	}
}

// Has reports whether a vCPU is in the set.
func (s VCPUs) Has(id int) bool {
	return id >= 0 && id < MaxVCPUs && s[id/wordBits]&(1<<(id%wordBits)) != 0
}

// Len returns the number of vCPUs.
func (s VCPUs) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// IDs returns the vCPUs in ascending order.
func (s VCPUs) IDs() []int {
	var ids []int
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			ids = append(ids, i*wordBits+bits.TrailingZeros64(w))
		}
	}
	return ids
}

// Without returns the vCPUs of s that are not in other.
func (s VCPUs) Without(other VCPUs) VCPUs {
	for i := range s {
		s[i] &^= other[i]
	}
	return s
}

// And returns the vCPUs that are in both sets.
func (s VCPUs) And(other VCPUs) VCPUs {
	for i := range s {
		s[i] &= other[i]
	}
	return s
}

// Or returns the vCPUs that are in one of the sets.
func (s VCPUs) Or(other VCPUs) VCPUs {
	for i := range s {
		s[i] |= other[i]
	}
	return s
}

// String returns the kernel's list format, as in "0-3,7".
func (s VCPUs) String() string {
	var b strings.Builder
	ids := s.IDs()
	for i := 0; i < len(ids); {
		end := i
		for end+1 < len(ids) && ids[end+1] == ids[end]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ids[i]))
		if end > i {
			b.WriteString("-" + strconv.Itoa(ids[end]))
		}
		i = end + 1
	}
	return b.String()
}

// ParseList reads the kernel's list format, as in "0-3,7"; empty: no vCPU.
// CPUs from MaxVCPUs on are an error.
func ParseList(list string) (VCPUs, error) {
	var s VCPUs
	if list = strings.TrimSpace(list); list == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(low, 10, 16)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(high, 10, 16)
		}
		if err != nil || last < first || last >= MaxVCPUs {
			return VCPUs{}, fmt.Errorf("%.32q is no list of CPUs below %d", list, MaxVCPUs)
		}
		for id := first; id <= last; id++ {
			s.Add(int(id))
		}
	}
	return s, nil
}

// MarshalText writes the mask without leading zeros.
func (s VCPUs) MarshalText() ([]byte, error) {
	var text []byte
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case len(text) > 0:
			text = fmt.Appendf(text, "%016x", s[i])
		case s[i] != 0 || i == 0:
			text = strconv.AppendUint(text, s[i], 16)
		}
	}
	return text, nil
}

// UnmarshalText reads a mask of at most MaxVCPUs bits.
func (s *VCPUs) UnmarshalText(text []byte) error {
	if len(text) == 0 || len(text) > MaxVCPUs/4 || !isHex(string(text), len(text)) {
		return fmt.Errorf("%.32q is no hexadecimal mask of at most %d bits", text, MaxVCPUs)
	}
	*s = VCPUs{}
	for i := range len(s) {
		const digits = wordBits / 4
		end := len(text) - i*digits
		if end <= 0 {
			break
		}
		word, err := strconv.ParseUint(string(text[max(0, end-digits):end]), 16, wordBits)
		if err != nil {
			return err
		}
		s[i] = word
	}
	return nil
}
