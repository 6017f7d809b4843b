package xen

import (
	"bytes"
	"testing"

	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

func TestParseInfoOfCapturedHosts(t *testing.T) {
	for _, host := range topologytest.Hosts(t, "xl-info.txt") {
		t.Run(host, func(t *testing.T) {
			topo, err := ParseInfo(bytes.NewReader(topologytest.File(t, host, "xl-info.txt")))
			if err != nil {
				t.Fatal(err)
			}
			topologytest.Expect(t, host, "xl-info", topo)
		})
	}
}
