package main

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// The daemon of a Xen host refuses the hand-over of CPUs.
func TestCheckXenDaemon(t *testing.T) {
	handsOver := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("2-3")}}
	for name, c := range map[string]struct {
		driver *xen.Driver
		policy policy.Policy
		says   string
	}{
		"without a policy":     {driver: xen.New(nil)},
		"CPUs are handed over": {driver: xen.New(nil), policy: handsOver, says: "handoff"},
		"no Xen host":          {policy: handsOver},
	} {
		h := &local.Host{Host: &move.Host{}, Xen: c.driver, Journal: record.Journal{Folder: t.TempDir()}}
		h.Policy = c.policy
		err := checkXenDaemon(h)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
}
