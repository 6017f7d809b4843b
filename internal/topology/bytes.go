package topology

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bytes is an amount of memory. It is written to JSON as a plain number of bytes.
type Bytes uint64

// Binary multiples of a byte.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

var byteUnits = []struct {
	suffix string
	size   Bytes
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}}

// String gives the amount in the largest binary unit that leaves at least 1,
// with at most one decimal: "16 GiB", "1.5 GiB", "512 B".
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b >= u.size {
			if b%u.size == 0 {
				return fmt.Sprintf("%d %s", b/u.size, u.suffix)
			}
			return fmt.Sprintf("%.1f %s", float64(b)/float64(u.size), u.suffix)
		}
	}
	return fmt.Sprintf("%d B", uint64(b))
}

// Plus adds without wrapping around: the sum is at most the greatest amount.
func (b Bytes) Plus(c Bytes) Bytes {
	if c > math.MaxUint64-b {
		return math.MaxUint64
	}
	return b + c
}

// ParseBytes reads "16G", "16GiB", "1.5 GiB", "2048k" or "4096". Units are
// binary whatever their spelling; a number alone is bytes.
func ParseBytes(s string) (Bytes, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	number := strings.TrimRight(text, "kmgtibyes ")
	unit := strings.TrimSpace(text[len(number):])
	scale := Bytes(1)
	switch unit {
	case "", "b", "bytes":
	case "k", "kb", "kib":
		scale = KiB
	case "m", "mb", "mib":
		scale = MiB
	case "g", "gb", "gib":
		scale = GiB
	case "t", "tb", "tib":
		scale = TiB
	default:
		return 0, fmt.Errorf("size %q: unknown unit %q; allowed: B, K, M, G, T (binary)", s, unit)
	}
	if whole, err := strconv.ParseUint(number, 10, 64); err == nil {
		if whole > math.MaxUint64/uint64(scale) {
			return 0, fmt.Errorf("size %q: larger than 16 EiB", s)
		}
		return Bytes(whole) * scale, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0) || f*float64(scale) >= math.MaxUint64 {
		return 0, fmt.Errorf("size %q: not an amount of memory; write for example 16G or 512M", s)
	}
	return Bytes(f * float64(scale)), nil
}

// ParseSize reads an amount that a person wrote, as ParseBytes does, but only
// with a unit: other tools interpret a number alone as KiB (virsh) or
// MiB (virt-install). 0 needs none.
func ParseSize(s string) (Bytes, error) {
	size, err := ParseBytes(s)
	if err != nil || size == 0 {
		return size, err
	}
	number := strings.TrimSpace(s)
	if last, _ := utf8.DecodeLastRuneInString(number); unicode.IsLetter(last) { // of 1e3 it is a digit
		return size, nil
	}
	unit := "MiB"
	if size >= MiB { // this number of MiB is too large
		unit = "B"
	}
	return 0, fmt.Errorf("give a unit, such as %s%s", number, unit)
}

// UnmarshalText reads an amount from a file that a person wrote, as ParseSize does.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = ParseSize(string(text))
	return err
}

// UnmarshalNumber reads a number of bytes from a JSON document: Numavisor writes sizes
// so. It refuses less than 1 MiB, which a person meant in another unit.
func (b *Bytes) UnmarshalNumber(number []byte) error {
	size, err := ParseBytes(string(number))
	if err == nil && size < MiB {
		size, err = ParseSize(string(number))
	}
	if err == nil {
		*b = size
	}
	return err
}

// UnmarshalJSON accepts a number of bytes or a string such as "16G".
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if whole, err := strconv.ParseUint(string(data), 10, 64); err == nil { // as this program writes it
		*b = Bytes(whole)
		return nil
	}
	text := strings.Trim(string(data), `"`)
	v, err := ParseBytes(text)
	if err != nil {
		return err
	}
	*b = v
	return nil
}
