package xen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// toolSettings is the file with the settings of xl (xl.conf(5)).
const toolSettings = "/etc/xen/xl.conf"

// ControlDomain returns what dom0 takes of the host, as of the last call of Guests, and how xl makes room for VMs.
func (d *Driver) ControlDomain(ctx context.Context) (*inventory.ControlDomain, error) {
	d.mu.Lock()
	c := d.control
	d.mu.Unlock()
	if c.VCPUs == 0 {
		return nil, errors.New("dom0 is not in the list of domains")
	}
	info, err := d.xl(ctx, "info")
	if err != nil {
		return nil, fmt.Errorf("dom0: %w", err)
	}
	settings, err := os.ReadFile(d.settings)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("settings of xl: %w", err)
	}
	c.Balloons, c.ClaimsOff = makesRoom(settings, commandLine(info))
	return &c, nil
}

// control returns what dom0 takes of the host.
func (s *state) control() (c inventory.ControlDomain) {
	for i := range s.domains {
		if s.domains[i].ID != controlDomain {
			continue
		}
		c.Memory, c.VCPUs = s.domains[i].Memory, len(s.vcpus[controlDomain])
		for _, v := range s.vcpus[controlDomain] {
			c.CPUs = c.CPUs.Union(effective(v.Hard, s.cpus(s.domains[i].Pool)))
		}
	}
	return c
}

// effective returns the CPUs of a hard affinity within a pool.
func effective(hard, pool topology.CPUSet) topology.CPUSet {
	if both := hard.Intersect(pool); !both.IsEmpty() {
		return both
	}
	return pool
}

// commandLine returns the options with which Xen was booted.
func commandLine(info []byte) []string {
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "xen_commandline" {
			return strings.Fields(value)
		}
	}
	return nil
}

// makesRoom reads autoballoon and claim_mode as xl does: autoballoon is "auto" by default, which is on unless Xen was
// booted with dom0_mem; claims are on by default. Settings that cannot be parsed count as absent.
func makesRoom(settings []byte, booted []string) (balloons, claimsOff bool) {
	balloons = true
	for _, option := range booted {
		if strings.HasPrefix(option, "dom0_mem=") {
			balloons = false
		}
	}
	c, err := ParseConfig(settings)
	if err != nil {
		return balloons, false
	}
	if v, ok := c.get("autoballoon"); ok {
		switch v.text {
		case "on", "1":
			balloons = true
		case "off", "0":
			balloons = false
		}
	}
	v, ok := c.get("claim_mode")
	return balloons, ok && v.text == "0"
}
