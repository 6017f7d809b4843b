package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Metric describes one metric, as docs/metrics.md lists it.
type Metric struct {
	Name   string
	Type   prometheus.ValueType // counter or gauge; of a histogram untyped
	Labels []string
	Unit   string
	Help   string // in one sentence
	// Bounds are the upper bounds of a histogram's buckets, ascending; none: it is no histogram.
	Bounds []float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// All metrics, in the order of docs/metrics.md. CPUs as a unit are CPUs busy on
// average over the window of the sample: 1.5 is one and a half CPUs.
var (
	buildInfo = add("build_info", gauge, "1",
		"The daemon's version; always 1.", "version", "revision",
		"goversion")
	hostMode = add("host_mode", gauge, "1", "1 for the balancing mode of this host, 0 for the other modes.",
		"mode")
	paused = add("paused", gauge, "0 or 1", "Whether an operator has paused all moves.")
	held   = add("held", gauge, "0 or 1",
		"Whether no moves run in spite of the host's mode: paused, or outside the maintenance windows.")

	nodeCPUs = add("node_cpus", gauge, "CPUs", "Online CPUs of the node.", "node")
	nodeUsed = add("node_cpus_used", gauge, "CPUs", "CPUs of the node that are in use by any program.", "node")
	nodeWait = add("node_waiting_threads", gauge, "threads",
		"Runnable threads that wait for a CPU of the node.", "node")
	nodeMemory = add("node_memory_bytes", gauge, "bytes", "Memory of the node.", "node")
	nodeFree   = add("node_memory_free_bytes", gauge, "bytes",
		"Free memory of the node; page cache counts as used.", "node")
	nodePool = add("node_hugepages_bytes", gauge, "bytes", "Huge page pool of the node, by size of the pages in bytes.",
		"node", "size")
	nodePoolFree = add("node_hugepages_free_bytes", gauge, "bytes",
		"Free part of the huge page pool of the node, by size of the pages in bytes.", "node", "size")
	nodeTraffic = add("node_memory_traffic_bytes_per_second", gauge, "bytes per second",
		"Traffic to the node's memory; absent if no source measures it.", "node")

	guestInfo = add(
		"guest_info",
		gauge,
		"1",
		"A VM that the daemon knows; always 1. Mode is its balancing "+
			"mode.",
		"guest",
		"state",
		"managed",
		"mode",
	)
	guestVCPUs = add("guest_vcpus", gauge, "vCPUs", "vCPUs of the VM.", "guest")
	guestSize  = add("guest_memory_size_bytes", gauge, "bytes", "Configured memory of "+
		"the VM.", "guest")
	guestUsed      = add("guest_cpus_used", gauge, "CPUs", "CPUs that the VM's vCPUs use.", "guest")
	guestThrottled = add("guest_cpus_throttled", gauge, "CPUs",
		"CPUs that the VM's vCPUs would use in addition without their own quota of CPU time; not in guest_cpus_waited.",
		"guest")
	guestWaited = add("guest_cpus_waited", gauge, "CPUs",
		"CPUs that the VM's vCPUs would use in addition if they did not wait for them (steal).", "guest")
	guestMemory = add("guest_memory_bytes", gauge, "bytes",
		"Memory of the VM on the node; nodes without any are omitted.", "guest", "node")
	guestLocal = add(
		"guest_local_memory_ratio",
		gauge,
		"0 to 1",
		"Share of the VM's memory that is local to the vCPUs using it, by the CPU that each last ran on; absent if "+
			"unknown.",
		"guest",
	)
	guestRemote = add(
		"guest_remote_access_ratio",
		gauge,
		"0 to 1",
		"Share of the VM's memory accesses that leave the node of the CPU, and the source of the figure: "+
			"resctrl, pmu, lab access counter, or placement estimate.",
		"guest",
		"source",
	)
	guestAccess = add(
		"guest_access_ratio",
		gauge,
		"0 to 1",
		"Share of the VM's accesses by the distance class of the memory from the CPU: local, neighbour, remote; "+
			"from the source that guest_remote_access_ratio names, which may be an estimate; absent if unknown.",
		"guest",
		"class",
	)
	guestTraffic = add("guest_memory_traffic_bytes_per_second", gauge, "bytes per second",
		"The VM's traffic to memory; absent if no source measures it.", "guest")
	guestDrift = add("guest_drift_differences", gauge, "differences",
		"Number of differences between the VM and its intended placement.", "guest")
	guestDegraded = add(
		"guest_degraded",
		gauge,
		"0 or 1",
		"Whether the VM is degraded: it waits for CPUs, its accesses are slow, or its nodes' memory bandwidth is "+
			"in use.",
		"guest",
	)
	guestBlocked = add(
		"guest_blocked",
		gauge,
		"0 or 1",
		"Whether the VM is blocked: the last plan found no allowed move that pays, though the VM is degraded or "+
			"would have to make room for another.",
		"guest",
	)
	guestInCooldown = add("guest_in_cooldown", gauge, "0 or 1",
		"Whether the VM is in its cooldown after a recent move.", "guest")
	guestAdvised = add("guest_advised", gauge, "0 or 1",
		"Whether a recommended move of the VM waits for an operator to accept it.",
		"guest")
	guestMoving = add("guest_move_progress_ratio", gauge, "0 to 1",
		"Copied share of the memory to copy in the VM's current move; absent without a move.",
		"guest", "kind")
	guestMovePace = add("guest_move_bytes_per_second", gauge, "bytes per second",
		"Copy rate of the VM's current move; absent without a move.", "guest", "kind")

	guestGranted = add("guest_cpus_granted", gauge, "CPUs",
		"CPUs that a mirrored VM is granted of those that VMs hand to each other; absent for other VMs.", "guest")
	guestMinimum  = add("guest_cpus_minimum", gauge, "CPUs", "CPUs that a mirrored VM always has.", "guest")
	guestDemanded = add("guest_cpus_demanded", gauge, "CPUs",
		"CPUs that a mirrored VM could use, by the last report of its agent; absent without a report.", "guest")
	guestUngranted = add("guest_cpus_ungranted", gauge, "CPUs",
		"CPUs that vCPUs of a mirrored VM would use in addition on CPUs that it is not granted; "+
			"not in guest_cpus_waited.",
		"guest")
	guestVCPUsUsed = add("guest_vcpus_used", gauge, "vCPUs",
		"vCPUs that a VM with cpu.sharing scale uses, by the last report of its agent; absent for other VMs.", "guest")
	guestVCPUsDemanded = add("guest_vcpus_demanded", gauge, "vCPUs",
		"vCPUs that a VM with cpu.sharing scale could use, by the last report of its agent.", "guest")
	guestWeight = add("guest_weight", gauge, "1",
		"Share of a mirrored VM, or one with cpu.sharing scale, if the CPUs do not suffice, relative to the weights "+
			"of others.", "guest")
	guestAgentUp = add("guest_agent_up", gauge, "0 or 1",
		"Whether the agent of a mirrored VM, or one with cpu.sharing scale, answers, and the means by which it frees "+
			"vCPUs: partition, flip, offline, none; unknown if it has never reported.", "guest", "means")
	guestTaken = add("guest_cpus_taken_total", counter, "CPUs",
		"CPUs that a mirrored VM has been granted since the daemon first saw it run.", "guest")
	guestRelease = addHistogram("guest_cpu_release_seconds", "seconds",
		"Time from the request to a mirrored VM to release a CPU until the CPU is free for another VM.",
		inventory.HandoverBounds(), "guest")
	guestRefused = add("guest_cpu_releases_refused_total", counter, "requests",
		"Requests to a mirrored VM to release a CPU that it has not obeyed within a second.", "guest")
	guestMisbehaved = add("guest_vcpus_misbehaved_total", counter, "vCPUs",
		"vCPUs of a mirrored VM that ran after it had released them, and were confined to its other CPUs.", "guest")

	pressure = add(
		"pressure_ratio",
		gauge,
		"0 to 1",
		"Share of the last 10 seconds in which some tasks, or all (full), waited for the resource; absent if the "+
			"kernel does not report it.",
		"resource",
		"scope",
	)
	kernelMoved = add("kernel_moved_bytes_per_second", gauge, "bytes per second",
		"Memory that moves between nodes, for any reason.")
	kernelFailed = add("kernel_move_failed_bytes_per_second", gauge, "bytes per second",
		"Memory whose move between nodes failed, for any reason.")
	kernelBalancing = add("kernel_balancing_moved_bytes_per_second", gauge, "bytes per second",
		"Memory that the kernel's own NUMA balancing moves between nodes.")
	accessSource = add(
		"access_source",
		gauge,
		"1",
		"A source of memory access figures in use on this host; always "+
			"1.",
		"source",
	)
	sampleGaps = add(
		"sample_gaps",
		gauge,
		"gaps",
		"Number of gaps in the last sample, without missing sources of memory access figures "+
			"(access_source lists the available ones).",
	)
	competitor = add(
		"competitor",
		gauge,
		"1",
		"Another program or kernel feature that moves pages or changes bindings on this host; 1: contends with "+
			"Numavisor, 0: expected here and left alone.",
		"competitor",
	)

	moves = add(
		"moves_total",
		counter,
		"moves",
		"Completed moves, by result: done, partial, cancelled (undone because an operator cancelled it), failed "+
			"(includes moves undone for another reason).",
		"result",
	)
	movedBytes  = add("moved_bytes_total", counter, "bytes", "Memory that moves have copied.")
	pulledBytes = add("pulled_bytes_total", counter, "bytes",
		"Memory that kernel balancing has brought to the vCPUs of moved VMs, enabled for that by the daemon.")
	repairs    = add("repairs_total", counter, "repairs", "VMs that had drifted and were bound again.")
	moving     = add("moves_in_progress", gauge, "moves", "Moves in progress.")
	movingDone = add("moves_in_progress_copied_bytes", gauge, "bytes", "Memory that the moves in progress have copied.")
	movingAll  = add("moves_in_progress_bytes", gauge, "bytes",
		"Memory that the moves in progress have to copy, including the part already copied.")
	advised = add("advised_moves", gauge, "moves", "Recommended moves that wait for an operator to "+
		"accept them.")
	advisedSaving = add("advised_saved_cpus", gauge, "CPUs",
		"CPU time that would no longer be lost to remote memory and to waiting if all recommended moves were made.")

	alarms  = add("alarms", gauge, "alarms", "Active alarms, by severity.", "severity")
	anAlarm = add(
		"alarm",
		gauge,
		"1",
		"An active alarm; always 1. Object is \"node "+
			"3\", \"guest web1\" or \"host\".",
		"quantity",
		"object",
		"severity",
	)
	alarmSaw = add("alarm_value", gauge, "that of the quantity", "Latest value of the quantity of an active alarm.",
		"quantity", "object", "severity")

	started    = add("start_time_seconds", gauge, "seconds since 1970", "Start time of the daemon.")
	cpuSeconds = add("cpu_seconds_total", counter, "seconds", "CPU time that the daemon has used.")
	residentB  = add("resident_memory_bytes", gauge, "bytes", "Resident memory of the daemon.")
	samples    = add("samples_total", counter, "samples", "Samples taken.")
	sampleAt   = add("sample_timestamp_seconds", gauge, "seconds since 1970", "Time of the last sample.")
	sampleCPU  = add("sample_cpu_seconds", gauge, "seconds", "CPU time of the last sample.")
	plans      = add("plans_total", counter, "plans", "Plans made.")
	planAt     = add("plan_timestamp_seconds", gauge, "seconds since 1970",
		"Time of the last plan; absent before the first.")
	planCPU = add("plan_cpu_seconds", gauge, "seconds", "CPU time of the last plan.")
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
	d := &described{Metric{prefix + name, kind, labels, unit, help, nil},
		prometheus.NewDesc(prefix+name, help, labels, nil)}
	all = append(all, d)
	return d
}

func addHistogram(name, unit, help string, bounds []time.Duration, labels ...string) *described {
	d := add(name, prometheus.UntypedValue, unit, help, labels...)
	for _, b := range bounds {
		d.Bounds = append(d.Bounds, b.Seconds())
	}
	return d
}

// All returns every metric that a Collector may send.
func All() []Metric {
	list := make([]Metric, len(all))
	for i, d := range all {
		list[i] = d.Metric
	}
	return list
}
