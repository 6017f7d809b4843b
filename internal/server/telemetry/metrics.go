package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/topology"
)

// metric is a metric as the interface describes it. All are gauges.
type metric struct{ name, help string }

var (
	hostUp     = metric{"numavisor_fleet_host_up", "1 while the host reports. Labels: host."}
	hostAlarms = metric{"numavisor_fleet_host_alarms", "Alarms of the host that last, by kind. Labels: host, kind."}
	hostCopy   = metric{"numavisor_fleet_host_copy_bytes_per_second",
		"Measured rate of copying memory between nodes of the host. Labels: host."}
	nodeCPUs = metric{"numavisor_fleet_node_cpus_used",
		"CPUs of the node in use by any program. Labels: host, node."}
	nodeWaiting = metric{"numavisor_fleet_node_threads_waiting",
		"Threads that were runnable on the node and waited for a CPU. Labels: host, node."}
	nodeFree = metric{"numavisor_fleet_node_free_bytes", "Free memory of the node. Labels: host, node."}
	vmCPUs   = metric{"numavisor_fleet_vm_cpus_used", "CPUs that the vCPUs of the VM used. Labels: host, vm."}
	vmWait   = metric{"numavisor_fleet_vm_cpus_waited",
		"CPUs that the vCPUs of the VM would have used in addition: the time they were runnable and did not run. " +
			"Labels: host, vm."}
	vmLocal = metric{"numavisor_fleet_vm_local_share",
		"Share of the memory of the VM that is on the nodes of its placement. Labels: host, vm."}
	vmPlaced = metric{"numavisor_fleet_vm_placed", "1 while the VM is placed on the nodes. Labels: host, vm, nodes."}
)

// described are all metrics, ascending by name.
func described() []metric {
	return []metric{hostAlarms, hostCopy, hostUp, nodeCPUs, nodeFree, nodeWaiting, vmCPUs, vmWait, vmLocal, vmPlaced}
}

// batch adds the samples of one host at one time.
type batch struct {
	to     storage.Appender
	at     int64 // ms
	labels labels.ScratchBuilder
	added  int
	old    error // of samples that are older than what the database takes
	err    error
}

// host adds the samples of loads: what is of the host before what is of its VMs.
func (b *batch) host(name string, l fleet.Loads) {
	b.add(hostUp, 1, "host", name)
	for _, kind := range slices.Sorted(maps.Keys(l.Alarms)) {
		b.add(hostAlarms, float64(l.Alarms[kind]), "host", name, "kind", kind)
	}
	if l.MoverBytesPerSecond > 0 {
		b.add(hostCopy, float64(l.MoverBytesPerSecond), "host", name)
	}
	for _, n := range l.Nodes {
		node := strconv.Itoa(int(n.Node))
		b.add(nodeCPUs, n.CPU, "host", name, "node", node)
		b.add(nodeWaiting, n.Wait, "host", name, "node", node)
		b.add(nodeFree, float64(n.Free), "host", name, "node", node)
	}
	for _, vm := range l.VMs {
		b.add(vmCPUs, vm.CPU, "host", name, "vm", vm.Name)
		b.add(vmWait, vm.Wait, "host", name, "vm", vm.Name)
		if vm.LocalShare != nil {
			b.add(vmLocal, *vm.LocalShare, "host", name, "vm", vm.Name)
		}
	}
}

func (b *batch) placements(host string, placed map[string]topology.NodeSet) {
	for _, vm := range slices.Sorted(maps.Keys(placed)) {
		b.add(vmPlaced, 1, "host", host, "vm", vm, "nodes", placed[vm].String())
	}
}

// add adds a sample. Labels are pairs of name and value.
func (b *batch) add(m metric, value float64, pairs ...string) {
	if b.err != nil {
		return
	}
	b.labels.Reset()
	b.labels.Add(model.MetricNameLabel, m.name)
	for i := 0; i < len(pairs); i += 2 {
		b.labels.Add(pairs[i], pairs[i+1])
	}
	b.labels.Sort()
	_, err := b.to.Append(0, b.labels.Labels(), b.at, rounded(value))
	switch {
	case err == nil:
		b.added++
	case errors.Is(err, errFull):
	case errors.Is(err, storage.ErrOutOfOrderSample), errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		// it has one already, of this time or later: the server was restarted
	case errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrTooOldSample):
		b.old = fmt.Errorf("%w: %w", ErrAhead, err)
	default:
		b.err = err
	}
}

// spare is how many of the 52 bits of a value's fraction are not stored: an error of 0.003 % at most. The database
// stores the bits in which a value differs from the one before, and the last ones of a load are noise.
const spare = 52 - 14

// rounded returns the nearest value that has only zeros in the spare bits.
func rounded(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	return math.Float64frombits((math.Float64bits(v) + 1<<(spare-1)) &^ (1<<spare - 1))
}
