package cost

// priceOfMove is the price of copying all of a guest's memory, in the units of a
// placement's cost. Another placement must be better by this much, in proportion
// to the memory to copy.
const priceOfMove = 0.5

// Copying is the price of copying a share of a guest's memory, from 0 to 1.
func Copying(share float64) Micro { return Of(priceOfMove * share) }

// copyingDisturbs is the share of a guest's CPU demand that is lost while its memory
// is copied: half of its accesses are remote on average, and each page that is
// copied is blocked for a moment.
const copyingDisturbs = 0.25

// CopyingCPU is the CPU time that copying takes from the host and the guest: the
// kernel copies on one CPU for the given time, and the guest with this demand in CPUs
// loses copyingDisturbs of it meanwhile. Its unit is the unit of took.
func CopyingCPU(took, demand float64) float64 { return took * (1 + copyingDisturbs*demand) }

// MovingSeconds is what moving a guest costs in any case, as seconds of copying: its
// threads are pinned again, its caches are cold, and its memory is measured. Another
// guest is therefore not drawn into a move to save less than these seconds.
const MovingSeconds = 1

// PageTables is the price, for each CPU in demand, of leaving a share of a guest's
// page tables behind: the kernel does not move them. vMitosis measured slowdowns up to
// 3.1x for guests that miss the TLB constantly. Few guests do, so it only decides
// between moves that are equal otherwise, and never justifies a copy.
func PageTables(share float64) float64 { return pageTablesLeft * share }

const pageTablesLeft = 0.00001

// FromAfar is the price, for each CPU in demand, of copying memory from a node on which all accesses lose this share of
// a CPU's time: until the copy has ended, some are made there. It only decides between moves that are equal otherwise:
// the copy of the smallest guest costs more.
func FromAfar(lost float64) float64 { return afar * lost }

const afar = 0.0001

// Waiting is the price of one CPU in demand that waits for a CPU, in weights of the
// term Load. With the default weights it is that of one CPU that waits for memory.
const Waiting = 4

// Spreading is the part of the term Load that decides between layouts of running
// guests in which equally much is lost, on nodes with more vCPUs than CPUs: they may want to run at the
// same time, which their mean demand does not show. Roomy is that part on nodes with a CPU for each vCPU: use of up to
// all CPUs slows no guest there, so it is too small to justify a copy.
const (
	Spreading = 0.01
	Roomy     = 0.00001
)

// Contention is the value of using a share of a node's memory bandwidth, in the
// unit of the term Bandwidth: access takes twice as long when all of the bandwidth
// is used. It has the same weight as that term.
func Contention(use float64) float64 { return use * use }

// memoryBound is the traffic of a CPU, in MB/s, above which memory access
// determines its speed: a few million cache misses a second.
const memoryBound = 500

// Intensity returns how much a guest's speed depends on memory, from 0 to 1, from
// its traffic in MB/s and the CPUs it uses. Without figures it is 1, as placing
// assumes.
func Intensity(mbps, cpus float64) float64 {
	if mbps <= 0 || cpus <= 0 {
		return 1
	}
	return min(1, mbps/cpus/memoryBound)
}
