package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one metric: what docs/metrics.md says of it.
type Metric struct {
	Name   string
	Type   prometheus.ValueType // counter or gauge
	Labels []string
	Unit   string
	Help   string // in one sentence
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// All metrics, in the order of docs/metrics.md. CPUs as a unit are CPUs busy
// on average over the window of the sample: 1.5 is one CPU and a half.
var (
	buildInfo = add("build_info", gauge, "1",
		"The daemon's version; 1: contends with Numavisor, 0: expected here and left to itself.", "version", "revision",
		"goversion")
	hostMode = add("host_mode", gauge, "1", "1 for the mode that balancing of this host is in, 0 for the other modes.",
		"mode")
	paused = add("paused", gauge, "0 or 1", "Whether an operator paused all moves.")
	held   = add("held", gauge, "0 or 1",
		"Whether nothing moves in spite of the host's mode: paused, or outside the maintenance windows.")

	nodeCPUs = add("node_cpus", gauge, "CPUs", "CPUs of the node that are online.", "node")
	nodeUsed = add("node_cpus_used", gauge, "CPUs", "CPUs of the node that are in use, by whomever.", "node")
	nodeWait = add("node_waiting_threads", gauge, "threads",
		"Threads that are runnable on the node and wait for a CPU.", "node")
	nodeMemory = add("node_memory_bytes", gauge, "bytes", "Memory of the node.", "node")
	nodeFree   = add("node_memory_free_bytes", gauge, "bytes",
		"Memory of the node that is free; page cache counts as used.", "node")
	nodePool = add("node_hugepages_bytes", gauge, "bytes", "Huge page pool of the node, by size of the pages in bytes.",
		"node", "size")
	nodePoolFree = add("node_hugepages_free_bytes", gauge, "bytes",
		"Free part of the huge page pool of the node, by size of the pages in bytes.", "node", "size")
	nodeTraffic = add("node_memory_traffic_bytes_per_second", gauge, "bytes per second",
		"Traffic to the node's memory; absent where nothing measures it.", "node")

	guestInfo = add(
		"guest_info",
		gauge,
		"1",
		"A guest that the daemon knows; 1: contends with Numavisor, 0: expected here and left to itself. Mode is "+
			"what may be done to it.",
		"guest",
		"state",
		"managed",
		"mode",
	)
	guestVCPUs = add("guest_vcpus", gauge, "vCPUs", "vCPUs of the guest.", "guest")
	guestSize  = add("guest_memory_size_bytes", gauge, "bytes", "Memory that the guest is configured "+
		"with.", "guest")
	guestUsed      = add("guest_cpus_used", gauge, "CPUs", "CPUs that the guest's vCPUs use.", "guest")
	guestThrottled = add("guest_cpus_throttled", gauge, "CPUs",
		"CPUs that the guest's vCPUs would use more without their own quota of CPU time; not in guest_cpus_waited.",
		"guest")
	guestWaited = add("guest_cpus_waited", gauge, "CPUs",
		"CPUs that the guest's vCPUs would use more if they did not wait for them (steal).", "guest")
	guestMemory = add("guest_memory_bytes", gauge, "bytes",
		"Memory of the guest that lies on the node; nodes without any are left out.", "guest", "node")
	guestLocal = add(
		"guest_local_memory_ratio",
		gauge,
		"0 to 1",
		"Part of the guest's memory that is local to the vCPUs using it, by the CPU each ran on last; absent where "+
			"that is not known.",
		"guest",
	)
	guestRemote = add(
		"guest_remote_access_ratio",
		gauge,
		"0 to 1",
		"Part of the guest's accesses to memory that leaves the node of the CPU, and the source of the figure: "+
			"resctrl, pmu, lab access counter, or placement estimate.",
		"guest",
		"source",
	)
	guestAccess = add(
		"guest_access_ratio",
		gauge,
		"0 to 1",
		"Part of the guest's accesses by the distance class of the memory from the CPU: local, neighbour, remote; "+
			"by the source that guest_remote_access_ratio names, an estimate included; absent where that is not known.",
		"guest",
		"class",
	)
	guestTraffic = add("guest_memory_traffic_bytes_per_second", gauge, "bytes per second",
		"The guest's traffic to memory; absent where nothing measures it.", "guest")
	guestDrift = add("guest_drift_differences", gauge, "differences",
		"In how many ways the guest differs from its intended placement.", "guest")
	guestDegraded = add(
		"guest_degraded",
		gauge,
		"0 or 1",
		"Whether the guest has a reason to move: it waits for CPUs, its accesses are slow, or its nodes' memory "+
			"bandwidth is in use.",
		"guest",
	)
	guestBlocked = add(
		"guest_blocked",
		gauge,
		"0 or 1",
		"Whether the last plan found no move for the guest that is allowed and pays, though it is degraded or would "+
			"have to make room.",
		"guest",
	)
	guestInCooldown = add("guest_in_cooldown", gauge, "0 or 1",
		"Whether balancing leaves the guest alone for now, because it was moved lately.", "guest")
	guestAdvised = add("guest_advised", gauge, "0 or 1", "Whether a move of the guest waits for somebody to accept it.",
		"guest")
	guestMoving = add("guest_move_progress_ratio", gauge, "0 to 1",
		"Part of the memory that is copied of the move in progress that the guest is part of; absent where none is.",
		"guest", "kind")
	guestMovePace = add("guest_move_bytes_per_second", gauge, "bytes per second",
		"Pace of the move in progress that the guest is part of; absent where none is.", "guest", "kind")

	pressure = add(
		"pressure_ratio",
		gauge,
		"0 to 1",
		"Part of the last 10 seconds in which some tasks, or all (full), waited for the resource; absent where the "+
			"kernel does not tell.",
		"resource",
		"scope",
	)
	kernelMoved = add("kernel_moved_bytes_per_second", gauge, "bytes per second",
		"Memory that moves between nodes, whoever asked for it.")
	kernelFailed = add("kernel_move_failed_bytes_per_second", gauge, "bytes per second",
		"Memory that was to move between nodes and did not, whoever asked for it.")
	kernelBalancing = add("kernel_balancing_moved_bytes_per_second", gauge, "bytes per second",
		"Memory that the kernel's own NUMA balancing moves between nodes.")
	accessSource = add(
		"access_source",
		gauge,
		"1",
		"A source of figures about accesses that is in use on this host; 1: contends with Numavisor, 0: expected "+
			"here and left to itself.",
		"source",
	)
	sampleGaps = add(
		"sample_gaps",
		gauge,
		"gaps",
		"How much the last sample could not see, sources of accesses that the host does not have left out "+
			"(access_source tells those it has).",
	)
	competitor = add(
		"competitor",
		gauge,
		"1",
		"Somebody else who moves pages or changes bindings on this host; 1: contends with Numavisor, 0: expected "+
			"here and left to itself.",
		"competitor",
	)

	moves = add(
		"moves_total",
		counter,
		"moves",
		"Moves that ended, by result: done, partial, cancelled (undone because an operator wanted that), failed "+
			"(those undone for another reason included).",
		"result",
	)
	movedBytes = add("moved_bytes_total", counter, "bytes", "Memory that moves copied.")
	repairs    = add("repairs_total", counter, "repairs", "Guests that had drifted and were bound again.")
	moving     = add("moves_in_progress", gauge, "moves", "Moves in progress.")
	movingDone = add("moves_in_progress_copied_bytes", gauge, "bytes", "Memory that the moves in progress have copied.")
	movingAll  = add("moves_in_progress_bytes", gauge, "bytes",
		"Memory that the moves in progress have to copy, that copied already included.")
	advised = add("advised_moves", gauge, "moves", "Moves found worth making that wait for somebody to "+
		"accept them.")
	advisedSaving = add("advised_saved_cpus", gauge, "CPUs",
		"CPU time no longer lost to far memory and to waiting if all advised moves were made.")

	alarms  = add("alarms", gauge, "alarms", "Alarms that last, by severity.", "severity")
	anAlarm = add(
		"alarm",
		gauge,
		"1",
		"An alarm that lasts; 1: contends with Numavisor, 0: expected here and left to itself. Object is \"node "+
			"3\", \"guest web1\" or \"host\".",
		"quantity",
		"object",
		"severity",
	)
	alarmSaw = add("alarm_value", gauge, "that of the quantity", "Latest value of the quantity of an alarm that lasts.",
		"quantity", "object", "severity")

	started    = add("start_time_seconds", gauge, "seconds since 1970", "When the daemon started.")
	cpuSeconds = add("cpu_seconds_total", counter, "seconds", "CPU time that the daemon has used.")
	residentB  = add("resident_memory_bytes", gauge, "bytes", "Memory that the daemon holds.")
	samples    = add("samples_total", counter, "samples", "Samples that were taken.")
	sampleAt   = add("sample_timestamp_seconds", gauge, "seconds since 1970", "When the last sample was taken.")
	sampleCPU  = add("sample_cpu_seconds", gauge, "seconds", "CPU time that the last sample took.")
	plans      = add("plans_total", counter, "plans", "Plans that were made.")
	planAt     = add("plan_timestamp_seconds", gauge, "seconds since 1970",
		"When the last plan was made; absent before the first.")
	planCPU = add("plan_cpu_seconds", gauge, "seconds", "CPU time that the last plan took.")
)

// prefix begins every name.
const prefix = "numavisor_"

// described is a metric with the library's description of it.
type described struct {
	Metric
	desc *prometheus.Desc
}

// all is in the order of the declarations above.
var all []*described

func add(name string, kind prometheus.ValueType, unit, help string, labels ...string) *described {
	d := &described{Metric{prefix + name, kind, labels, unit, help}, prometheus.NewDesc(prefix+name, help, labels, nil)}
	all = append(all, d)
	return d
}

// All returns every metric that a Collector may give.
func All() []Metric {
	list := make([]Metric, len(all))
	for i, d := range all {
		list[i] = d.Metric
	}
	return list
}
