package observe_test

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Only the claims and the named guests are read again.
func TestAgain(t *testing.T) {
	h, s := sources(t)
	before, err := observe.Host(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	h.Inject(fake.Fault{Before: func(call fake.Call) error {
		if call.Method == "Guests" || call.Method == "Topology" || call.Method == "Settings" {
			t.Errorf("%s is read again", call.Method)
		}
		return nil
	}})
	s.Claims = func() ([]inventory.Claim, error) { return []inventory.Claim{{Name: "new"}}, nil }
	now, ok, err := observe.Again(t.Context(), s, before, "b")
	if err != nil || !ok || names(now) != "a b" || len(now.Claims) != 1 || len(now.Gaps) > 0 {
		t.Fatalf("%v, %v: guests %q, claims %v, gaps %v", ok, err, names(now), now.Claims, now.Gaps)
	}
	if !now.Guests[1].ReadClosely() || before.Guests[1].ReadClosely() || now.Guests[0].ReadClosely() {
		t.Error("b is to be read closely, and the earlier observation is to stay as it was")
	}
}

// An observation of a guest that has ended, or of which something was unknown, cannot be completed.
func TestAgain_IsNotEnough(t *testing.T) {
	h, s := sources(t)
	before, err := observe.Host(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	unknown := before
	unknown.Gaps = []inventory.Gap{{Kind: inventory.MemoryUnread, Object: inventory.GuestRef("a")}}
	for what, c := range map[string]struct {
		host inventory.Host
		name string
	}{"a guest that was not there": {before, "c"}, "a guest with a gap": {unknown, "a"}} {
		if _, ok, err := observe.Again(t.Context(), s, c.host, c.name); ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
	if err := h.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := observe.Again(t.Context(), s, before, "a"); ok || err != nil {
		t.Errorf("a guest that has ended: %v, %v", ok, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := observe.Again(ended, s, before, "b"); ok || err == nil {
		t.Errorf("the context has ended: %v, %v", ok, err)
	}
}
