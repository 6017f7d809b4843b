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

// The daemon of a Xen host refuses a fleet and the hand-over of CPUs, and names what to do; it starts otherwise.
func TestCheckXenDaemon(t *testing.T) {
	handsOver := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("2-3")}}
	for name, c := range map[string]struct {
		driver *xen.Driver
		policy policy.Policy
		in     membership
		says   string
	}{
		"alone":                 {driver: xen.New(nil)},
		"to join":               {driver: xen.New(nil), in: membership{server: "server1:9443"}, says: "--join"},
		"to join by a file":     {driver: xen.New(nil), in: membership{file: "join.json"}, says: "--join"},
		"CPUs are handed over":  {driver: xen.New(nil), policy: handsOver, says: "handoff"},
		"no Xen host: all that": {policy: handsOver, in: membership{server: "server1:9443"}},
	} {
		h := &local.Host{Host: &move.Host{}, Xen: c.driver, Journal: record.Journal{Folder: t.TempDir()}}
		h.Policy = c.policy
		err := checkXenDaemon(h, daemonFlags{in: &c.in})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
}
