package lab

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
)

// Scope returns the lab's access counter, switched off at first.
func (h *Host) Scope() (*labcounter.Counter, error) { return labcounter.Open(h.share("scope")) }

//go:embed scope/numascope.c
var scopeSource []byte

// qemuVersion is what --version says, without the patch level.
type qemuVersion struct{ major, minor int }

// physicalAddresses reports whether plugins get guest physical addresses: from
// QEMU 8.2 on. Before, qemu_plugin_hwaddr_phys_addr returned the offset of the
// memory block plus the address of its region (QEMU's plugins/api.c, changed by
// "plugin: Simplify struct qemu_plugin_hwaddr" of September 2023).
func (v qemuVersion) physicalAddresses() bool { return v.major > 8 || v.major == 8 && v.minor >= 2 }

// staleCode reports whether code may run that was overwritten while another CPU
// translated it: before QEMU 8.1 ("accel/tcg: Always lock pages before
// translation" of July 2023). The plugin detects it and retranslates the code.
func (v qemuVersion) staleCode() bool { return v.major < 8 || v.major == 8 && v.minor < 1 }

// lostInterrupts reports whether a CPU may lose an interrupt, for instance that of its timer, and then sleep for ever:
// before QEMU 10.2 a CPU changed its pending interrupts without an atomic operation while devices added others
// (CPUState.interrupt_request; cpu_set_interrupt in system/cpus.c of 10.2 adds them atomically).
func (v qemuVersion) lostInterrupts() bool { return v.major < 10 || v.major == 10 && v.minor < 2 }

// danglingCallbacks reports whether CPUs may follow pointers to callbacks that
// were freed: before QEMU 8.0 ("plugins: fix optimization in
// plugin_gen_disable_mem_helpers" of February 2023). The plugin keeps its
// callbacks from being freed, if it is loaded before GLib.
func (v qemuVersion) danglingCallbacks() bool { return v.major < 8 }

// pluginVersion is the plugin interface to ask for: QEMU from 9.0 on accepts
// none before 2, from 9.1 on behaves as version 3 whichever is requested, and from
// 11.1 on accepts none before 7.
func (v qemuVersion) pluginVersion() int {
	switch {
	case v.major > 11 || v.major == 11 && v.minor >= 1:
		return 7
	case v.major > 9 || v.major == 9 && v.minor >= 1:
		return 3
	case v.major == 9:
		return 2
	}
	return 1
}

// loadScope compiles the plugin into the cache, and returns QEMU's arguments for it and
// the libraries that QEMU must load first.
func (h *Host) loadScope(ctx context.Context, o Options) (args, preload []string, err error) {
	version, err := askQEMUVersion(ctx, o.QEMU)
	if err != nil {
		return nil, nil, err
	}
	plugin, err := compileOnce(ctx, "numascope", scopeSource, "-shared", "-fPIC",
		fmt.Sprintf("-DPLUGIN_VERSION=%d", version.pluginVersion()))
	if err != nil {
		return nil, nil, err
	}
	config := filepath.Join(h.folder, "scope.conf")
	if err := os.WriteFile(config, []byte(scopeConfig(o.Shape, h.share("scope"), version)), 0o644); err != nil {
		return nil, nil, err
	}
	args = []string{"-plugin", optionValue(plugin) + ",config=" + optionValue(config)}
	if version.danglingCallbacks() {
		preload = append(preload, plugin)
	}
	return args, preload, nil
}

// scopeConfig writes the shape for the plugin: CPUs' nodes, memory ranges,
// delays.
func scopeConfig(s Shape, shared string, version qemuVersion) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shared %s\n", shared)
	if version.staleCode() {
		fmt.Fprintln(&b, "stale-code")
	}
	if s.Prefetch {
		fmt.Fprintln(&b, "prefetch")
	}
	if s.Marked {
		fmt.Fprintln(&b, "marked")
	}
	cpu := 0
	for i, n := range s.Nodes {
		fmt.Fprintf(&b, "node %d %d\n", i, i)
		if n.PerMS > 0 {
			fmt.Fprintf(&b, "budget %d %.0f\n", i, 1e6/n.PerMS)
		}
		for range n.CPUs {
			fmt.Fprintf(&b, "cpu %d %d\n", cpu, i)
			cpu++
		}
		for j := range s.Nodes {
			fmt.Fprintf(&b, "delay %d %d %d\n", i, j, s.ExtraNanos(i, j))
		}
	}
	for _, r := range addressRanges(s, version) {
		fmt.Fprintf(&b, "range %d %d %d\n", r.start, r.size, r.node)
	}
	return b.String()
}

// lowMemory is where the hole below 4 GiB begins (the pc machine's max-ram-below-4g).
const lowMemory = 3 * topology.GiB

type addressRange struct {
	start, size topology.Bytes
	node        int
}

// addressRanges maps the memory addresses that QEMU passes to plugins to nodes.
// Nodes follow each other. QEMU before 8.2 counts a node's place twice: as the
// offset of its block and as the address of its region. From 8.2 on the number
// is the physical address: memory above the hole is shifted up.
func addressRanges(s Shape, version qemuVersion) []addressRange {
	var ranges []addressRange
	var start topology.Bytes
	for i, n := range s.Nodes {
		end := start + n.Memory
		switch {
		case n.Memory == 0:
		case !version.physicalAddresses():
			ranges = append(ranges, addressRange{2 * start, n.Memory, i})
		default:
			if start < lowMemory {
				ranges = append(ranges, addressRange{start, min(end, lowMemory) - start, i})
			}
			if end > lowMemory {
				from := max(start, lowMemory)
				ranges = append(ranges, addressRange{from + 4*topology.GiB - lowMemory, end - from, i})
			}
		}
		start = end
	}
	return ranges
}
