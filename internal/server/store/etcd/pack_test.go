package etcd

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/server/store"
)

// What is stored is never larger than the value, unless it would be taken for a compressed one, and is the value again.
func TestPack_ShrinksValues(t *testing.T) {
	t.Parallel()
	var p packer
	for name, value := range map[string]string{"small": strings.Repeat("x", packFrom-1), "noise": rot(2 * packFrom),
		"from here on": strings.Repeat("x", packFrom), "large": strings.Repeat("numa ", store.MaxSize/5),
		"like a compressed one": packed, "another": packed + rot(packFrom)} {
		got, err := p.pack([]byte(value))
		if err != nil || len(got) > len(value) && !strings.HasPrefix(value, packed) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(value), err)
		}
		if strings.HasPrefix(name, "from") && len(got) > packFrom/4 {
			t.Errorf("%s: %d bytes", name, len(got))
		}
		again, err := p.unpack([]byte(got))
		if err != nil || string(again) != value {
			t.Errorf("%s: %d bytes come back, %v", name, len(again), err)
		}
	}
}

// rot returns bytes that do not compress.
func rot(n int) string {
	out, state := make([]byte, n), uint32(1)
	for i := range out {
		state = state*1664525 + 1013904223
		out[i] = byte(state >> 24)
	}
	return string(out)
}

// A damaged value is an error, and does not harm those that are read later.
func TestUnpack_DamagedValues(t *testing.T) {
	t.Parallel()
	var p packer
	good, err := p.pack([]byte(strings.Repeat("numa ", 1000)))
	if err != nil {
		t.Fatal(err)
	}
	for n := len(packed); n < len(good); n++ {
		if _, err := p.unpack([]byte(good[:n])); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(good))
		}
	}
	if value, err := p.unpack([]byte(good)); err != nil || len(value) != 5000 {
		t.Errorf("%d bytes, %v", len(value), err)
	}
}
