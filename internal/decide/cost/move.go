package cost

// priceOfMove is the price of copying all of a guest's memory, in the units of a
// placement's cost. Another placement must be better by this much, in proportion
// to the memory to copy.
const priceOfMove = 0.5

// pageTablesLeft is the one-time price if a guest's page tables stay on their nodes
// when its vCPUs move: the kernel does not move page tables. vMitosis measured
// slowdowns up to 3.1x for guests with small pages that miss the TLB constantly.
// Few guests do, and copying pages fills the tables again.
const pageTablesLeft = 0.05

// Copying is the price of copying a share of a guest's memory, from 0 to 1.
func Copying(share float64) Micro { return Of(priceOfMove * share) }

// PageTables is the price of leaving a share of a guest's page tables behind.
func PageTables(share float64) Micro { return Of(pageTablesLeft * share) }

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
