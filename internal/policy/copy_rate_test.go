package policy_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestCopyRate(t *testing.T) {
	const mib, gib = topology.MiB, topology.GiB
	for _, c := range []struct {
		balance  policy.Balance
		measured topology.Bytes
		rate     topology.Bytes
		from     string
	}{
		{policy.Balance{}, 0, gib, "not measured here"},
		{policy.Balance{}, 300 * mib, 300 * mib, "measured here"},
		{policy.Balance{}, 8 * gib, 8 * gib, "measured here"},
		{policy.Balance{BytesPerSecond: 2 * gib}, 0, 2 * gib, "not measured here"},
		{policy.Balance{BytesPerSecond: 2 * gib}, 300 * mib, 300 * mib, "measured here"},
		{policy.Balance{Pace: 16 * mib}, 300 * mib, 16 * mib, "the policy's pace"},
		{policy.Balance{Pace: 16 * mib}, 0, 16 * mib, "the policy's pace"},
		{policy.Balance{Pace: 512 * mib}, 300 * mib, 300 * mib, "measured here"},
	} {
		if rate, from := c.balance.CopyRate(c.measured); rate != c.rate || from != c.from {
			t.Errorf("%+v, measured %v: %v (%s), want %v (%s)", c.balance, c.measured, rate, from, c.rate, c.from)
		}
	}
}
