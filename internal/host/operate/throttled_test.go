package operate_test

import (
	"math"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// The kernel also counts the time in which its own quota throttles a VM as waiting
// for a CPU; no other CPU would have helped.
func TestTruths_DistinguishThrottlingFromWaiting(t *testing.T) {
	vcpu := guest.VCPUID(0)
	h := inventory.Host{Guests: []inventory.Guest{{Name: "capped", State: "running", Seen: inventory.Seen{
		Threads: []inventory.Thread{
			{TID: 1, Role: inventory.RoleVCPU, VCPU: &vcpu, RunTime: 19 * time.Second, WaitTime: 81 * time.Second}},
		Throttled: 80 * time.Second,
	}}}}
	truth := operate.Truths(&h)[0]
	if truth.WaitShare == nil || math.Abs(*truth.WaitShare-0.05) > 1e-9 {
		t.Errorf("waits %v of the time, want 1 s of the 20 s in which it was not throttled", text(truth.WaitShare))
	}
	if truth.ThrottledShare == nil || math.Abs(*truth.ThrottledShare-0.8) > 1e-9 {
		t.Errorf("is throttled for %v of the time, want 0.8", text(truth.ThrottledShare))
	}
}

func text(share *float64) any {
	if share == nil {
		return "nil"
	}
	return *share
}
