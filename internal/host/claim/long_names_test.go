package claim_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/claim"
)

// libvirt takes names of VMs of some 200 bytes. A byte outside ASCII takes three
// in the name of the file, and that has at most 255 bytes (NAME_MAX).
func TestLedger_LongNames(t *testing.T) {
	for _, name := range []string{strings.Repeat("я", 60), strings.Repeat("日本", 30), strings.Repeat("%", 190)} {
		l, other := ledger(t), name+"2"
		put(t, l, name, 1)
		put(t, l, other, 2)
		if all, err := l.Claims(); err != nil || len(all) != 2 || all[0].Name != name || all[1].Name != other {
			t.Errorf("%s: claims are %v, %v; want both", name, all, err)
		}
		grown := []claim.Grown{{Node: 1, Size: 2 << 20, Pages: 3}}
		if err := l.PutGrown(name, grown); err != nil {
			t.Error(err)
		}
		if got, err := l.GrownFor(name); err != nil || !slices.Equal(got, grown) {
			t.Errorf("%s: pools grown by %v, %v; want %v", name, got, err, grown)
		}
		if got, err := l.GrownFor(other); err != nil || len(got) > 0 {
			t.Errorf("%s: pools grown by %v, %v; want none", other, got, err)
		}
		if err := l.Release(name); err != nil {
			t.Error(err)
		}
		if all, err := l.Claims(); err != nil || len(all) != 1 || all[0].Name != other {
			t.Errorf("%s released: claims are %v, %v; want the other", name, all, err)
		}
	}
}
