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

// The daemon of a Xen host joins a fleet; it refuses what a fleet's VMs of libvirt need, and the hand-over of CPUs.
func TestCheckXenDaemon(t *testing.T) {
	handsOver := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("2-3")}}
	for name, c := range map[string]struct {
		driver *xen.Driver
		policy policy.Policy
		in     membership
		says   string
	}{
		"alone":                 {driver: xen.New(nil)},
		"to join":               {driver: xen.New(nil), in: membership{server: "server1:9443"}},
		"images of a fleet":     {driver: xen.New(nil), in: membership{images: []string{"/srv"}}, says: "--images"},
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
