package topology

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/text"
)

// NodeID is the kernel's number of a NUMA node.
type NodeID int

// CPUID is the kernel's number of a logical CPU.
type CPUID int

// CPUSet is a set of logical CPUs of the host.
type CPUSet = Set[CPUID]

// NodeSet is a set of NUMA nodes of the host.
type NodeSet = Set[NodeID]

// maxID bounds what Parse accepts, so that hostile input cannot ask for
// gigabytes: Linux allows 8192 CPUs (CONFIG_NR_CPUS) and 1024 nodes.
const maxID = 1<<16 - 1

// Set is an immutable set of small non-negative ids. The zero value is empty.
// Methods return new sets and never change their receiver. Compare with Equal.
type Set[ID ~int] struct{ words []uint64 } // no trailing zero word

// SetOf returns the set of the given ids. Ids below 0 or above 65535 panic:
// they are a programming error; foreign input goes through Parse.
func SetOf[ID ~int](ids ...ID) Set[ID] {
	top := -1
	for _, id := range ids {
		if id < 0 || int(id) > maxID {
			panic(fmt.Sprintf("set: id %d out of range", id))
		}
		top = max(top, int(id))
	}
	words := make([]uint64, top/64+1)
	if top < 0 {
		words = nil
	}
	for _, id := range ids {
		words[id/64] |= 1 << (id % 64)
	}
	return Set[ID]{words}
}

// Range returns the set of all ids from first to last, both included.
func Range[ID ~int](first, last ID) Set[ID] {
	ids := make([]ID, 0, max(0, int(last-first)+1))
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return SetOf(ids...)
}

// ParseSet reads a Linux list such as "0-3,8" ("" and "\n" are the empty set).
// Strides ("0-10:1/2") are accepted as the kernel's bitmap_parselist does.
func ParseSet[ID ~int](s string) (Set[ID], error) {
	if set, ok := parsePlain[ID](s); ok {
		return set, nil
	}
	text := strings.TrimSpace(s)
	if text == "" {
		return Set[ID]{}, nil
	}
	// Bits, not ids: a hostile list may name every id a million times.
	words := make([]uint64, maxID/64+1)
	for part := range strings.SplitSeq(text, ",") {
		if err := parseRange(strings.TrimSpace(part), words); err != nil {
			return Set[ID]{}, fmt.Errorf("list %q: %w", abbreviate(s), err)
		}
	}
	return Set[ID]{slices.Clone(trimmed[ID](words).words)}, nil
}

// plainIDs bounds the ids of lists that parsePlain reads.
const plainIDs = 512

// parsePlain reads a list of ids below plainIDs and ranges of them, as this program writes it; ok is false for all
// other texts. Records of hosts and VMs have hundreds of lists.
func parsePlain[ID ~int, T string | []byte](list T) (set Set[ID], ok bool) {
	var words [plainIDs / 64]uint64
	first, id, used := -1, -1, 0
	end := func() bool {
		if first < 0 {
			first = id
		}
		if first < 0 || id < first {
			return false
		}
		for i := first; i <= id; i++ {
			words[i/64] |= 1 << (i % 64)
		}
		first, id, used = -1, -1, max(used, wordsFor(id))
		return true
	}
	for i := range len(list) {
		switch c := list[i]; {
		case c >= '0' && c <= '9':
			if id = max(id, 0)*10 + int(c-'0'); id >= plainIDs {
				return set, false
			}
		case c == '-' && first < 0 && id >= 0:
			first, id = id, -1
		case c != ',' || !end():
			return set, false
		}
	}
	if len(list) == 0 {
		return set, true
	}
	if !end() {
		return set, false
	}
	return Set[ID]{slices.Clone(words[:used])}, true
}

// wordsFor returns how many words a set needs for an id.
func wordsFor(id int) int { return id/64 + 1 }

// parseRange sets the bits of "3", "0-7" or "0-10:1/2".
func parseRange(part string, words []uint64) error {
	span, stride, strided := strings.Cut(part, ":")
	used, group := 1, 1
	if strided {
		u, g, _ := strings.Cut(stride, "/")
		var err1, err2 error
		used, err1 = parseID(u)
		group, err2 = parseID(g)
		if err1 != nil || err2 != nil || used < 1 || group < used {
			return fmt.Errorf("%q: stride %q is not of the form used/group", part, stride)
		}
	}
	low, high, ranged := strings.Cut(span, "-")
	first, err := parseID(low)
	if err != nil {
		return fmt.Errorf("%q: %w", part, err)
	}
	last := first
	if ranged {
		if last, err = parseID(high); err != nil {
			return fmt.Errorf("%q: %w", part, err)
		}
	}
	if last < first {
		return fmt.Errorf("%q: range runs backwards", part)
	}
	for i := first; i <= last; {
		if group == used && i%64 == 0 && i+63 <= last {
			words[i/64] = ^uint64(0)
			i += 64
			continue
		}
		if (i-first)%group < used {
			words[i/64] |= 1 << (i % 64)
		}
		i++
	}
	return nil
}

func parseID(s string) (int, error) {
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil || v > maxID {
		return 0, fmt.Errorf("%q is not an id from 0 to %d", abbreviate(s), maxID)
	}
	return int(v), nil
}

func abbreviate(s string) string { return text.Shorten(s, 80) }

// MustParseSet is ParseSet for text known to be valid; it panics otherwise.
func MustParseSet[ID ~int](s string) Set[ID] {
	set, err := ParseSet[ID](s)
	if err != nil {
		panic(err)
	}
	return set
}

// String gives the Linux list form, "" for the empty set.
func (s Set[ID]) String() string {
	var b strings.Builder
	start, prev := -2, -2
	flush := func() {
		if start < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(start))
		if prev > start {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(prev))
		}
	}
	for id := range s.All() {
		if int(id) != prev+1 {
			flush()
			start = int(id)
		}
		prev = int(id)
	}
	flush()
	return b.String()
}

// All iterates over the ids in ascending order.
func (s Set[ID]) All() iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(ID(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// IDs returns the ids in ascending order.
func (s Set[ID]) IDs() []ID {
	ids := make([]ID, 0, s.Len())
	for id := range s.All() {
		ids = append(ids, id)
	}
	return ids
}

// First returns the lowest id; ok is false for the empty set.
func (s Set[ID]) First() (id ID, ok bool) {
	for i, w := range s.words {
		if w != 0 {
			return ID(i*64 + bits.TrailingZeros64(w)), true
		}
	}
	return 0, false
}

// Len returns how many ids the set holds.
func (s Set[ID]) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether the set holds no id.
func (s Set[ID]) IsEmpty() bool { return len(s.words) == 0 }

// Contains reports whether id is in the set.
func (s Set[ID]) Contains(id ID) bool {
	return id >= 0 && int(id)/64 < len(s.words) && s.words[id/64]&(1<<(id%64)) != 0
}

// Equal reports whether both sets hold the same ids.
func (s Set[ID]) Equal(t Set[ID]) bool {
	if len(s.words) != len(t.words) {
		return false
	}
	for i, w := range s.words {
		if t.words[i] != w {
			return false
		}
	}
	return true
}

// SubsetOf reports whether every id of s is in t.
func (s Set[ID]) SubsetOf(t Set[ID]) bool { return s.Minus(t).IsEmpty() }

// Intersects reports whether s and t share an id.
func (s Set[ID]) Intersects(t Set[ID]) bool {
	for i := range min(len(s.words), len(t.words)) {
		if s.words[i]&t.words[i] != 0 {
			return true
		}
	}
	return false
}

// Common returns how many ids are in both s and t.
func (s Set[ID]) Common(t Set[ID]) (n int) {
	for i := range min(len(s.words), len(t.words)) {
		n += bits.OnesCount64(s.words[i] & t.words[i])
	}
	return n
}

// Union returns the ids in s or t.
func (s Set[ID]) Union(t Set[ID]) Set[ID] {
	if len(s.words) < len(t.words) {
		s, t = t, s
	}
	words := append([]uint64(nil), s.words...)
	for i, w := range t.words {
		words[i] |= w
	}
	return Set[ID]{words}
}

// Intersect returns the ids in both s and t.
func (s Set[ID]) Intersect(t Set[ID]) Set[ID] {
	words := make([]uint64, min(len(s.words), len(t.words)))
	for i := range words {
		words[i] = s.words[i] & t.words[i]
	}
	return trimmed[ID](words)
}

// Minus returns the ids in s but not in t.
func (s Set[ID]) Minus(t Set[ID]) Set[ID] {
	words := append([]uint64(nil), s.words...)
	for i := range min(len(words), len(t.words)) {
		words[i] &^= t.words[i]
	}
	return trimmed[ID](words)
}

// With returns s and the given ids.
func (s Set[ID]) With(ids ...ID) Set[ID] { return s.Union(SetOf(ids...)) }

func trimmed[ID ~int](words []uint64) Set[ID] {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	if len(words) == 0 {
		return Set[ID]{}
	}
	return Set[ID]{words}
}

// MarshalJSON writes the Linux list form.
func (s Set[ID]) MarshalJSON() ([]byte, error) {
	return []byte(`"` + s.String() + `"`), nil // nothing in it needs an escape
}

// UnmarshalText reads the Linux list form.
func (s *Set[ID]) UnmarshalText(text []byte) error {
	set, err := ParseSet[ID](string(text))
	if err == nil {
		*s = set
	}
	return err
}

// UnmarshalJSON reads the Linux list form; a bare number is a set of one.
func (s *Set[ID]) UnmarshalJSON(data []byte) error {
	if n := len(data); n >= 2 && data[0] == '"' && data[n-1] == '"' {
		if set, ok := parsePlain[ID](data[1 : n-1]); ok {
			*s = set
			return nil
		}
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		var one uint32
		if json.Unmarshal(data, &one) != nil {
			return fmt.Errorf("expected a list such as \"0-3,8\", found %s", abbreviate(string(data)))
		}
		text = strconv.Itoa(int(one))
	}
	set, err := ParseSet[ID](text)
	if err != nil {
		return err
	}
	*s = set
	return nil
}

// IsZero lets encoding/json leave the empty set out with omitzero.
func (s Set[ID]) IsZero() bool { return s.IsEmpty() }
