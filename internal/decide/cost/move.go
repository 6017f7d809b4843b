package cost

// priceOfMove is what copying all of a guest's memory costs, in the units of
// a placement's cost: a placement elsewhere must be better by this much, in
// proportion to what would have to be copied.
const priceOfMove = 0.5

// pageTablesLeft is what it costs once that a guest's page tables stay where
// they are when its vCPUs go: the kernel does not move them. vMitosis saw up
// to 3.1x for guests in small pages that miss the TLB all the time; few do,
// and the tables are filled again where pages are copied.
const pageTablesLeft = 0.05

// Copying is the price of copying a share of a guest's memory, from 0 to 1.
func Copying(share float64) Micro { return Of(priceOfMove * share) }

// PageTables is the price of leaving a share of a guest's page tables behind.
func PageTables(share float64) Micro { return Of(pageTablesLeft * share) }

// Contention is the value of using a share of a node's memory bandwidth, in
// the unit of the term Bandwidth: access takes twice as long where all is
// used. It weighs as that term does.
func Contention(use float64) float64 { return use * use }

// memoryBound is the traffic of a CPU, in MB a second, from which access to
// memory decides how fast it is: a few million cache misses a second.
const memoryBound = 500

// Intensity is how much a guest's speed depends on memory, from 0 to 1, by
// its traffic in MB a second and the CPUs it uses. Without figures it is 1,
// which is what placing assumes.
func Intensity(mbps, cpus float64) float64 {
	if mbps <= 0 || cpus <= 0 {
		return 1
	}
	return min(1, mbps/cpus/memoryBound)
}
