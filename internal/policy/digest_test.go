package policy_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/policy"
)

// The daemon fills in defaults before it reports a digest, and a command that
// compares its own policy may not have.
func TestDigest_IsTheSameWithDefaultsFilledIn(t *testing.T) {
	advise := policy.Policy{Balance: policy.Balance{Mode: policy.ModeAdvise}}
	for _, p := range []policy.Policy{{}, advise} {
		if p.Digest() != p.WithDefaults().Digest() {
			t.Errorf("the digest of %+v changes when its defaults are filled in", p)
		}
	}
	if advise.Digest() == (policy.Policy{}).Digest() {
		t.Error("policies of different modes have the same digest")
	}
}
