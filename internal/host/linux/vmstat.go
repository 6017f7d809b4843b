package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Migrations are the host's counters of all page migrations since boot
// (/proc/vmstat).
type Migrations struct {
	Success, Fail uint64 // pgmigrate_*: small pages
	// Of transparent huge pages: moved whole, not moved, split into small pages to move.
	HugeSuccess, HugeFail, HugeSplit uint64
	// By the kernel's own NUMA balancing: entries made inaccessible, faults on them, pages moved.
	BalancingMarks, BalancingFaults, BalancingMoved uint64
}

// ParseVMStat reads the migration counters of /proc/vmstat. Counters that the
// kernel was built without stay 0.
func ParseVMStat(data []byte) (Migrations, error) {
	var m Migrations
	into := map[string]*uint64{
		"pgmigrate_success": &m.Success, "pgmigrate_fail": &m.Fail,
		"thp_migration_success": &m.HugeSuccess, "thp_migration_fail": &m.HugeFail, "thp_migration_split": &m.HugeSplit,
		"numa_pte_updates": &m.BalancingMarks, "numa_hint_faults": &m.BalancingFaults,
		"numa_pages_migrated": &m.BalancingMoved,
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		counter := into[name]
		if counter == nil {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return Migrations{}, fmt.Errorf("vmstat: %s: %q is not a number", name, abbreviate(value))
		}
		*counter = n
	}
	return m, nil
}

// Migrations reads the host's migration counters.
func (r Root) Migrations() (Migrations, error) {
	data, err := os.ReadFile(r.path("proc/vmstat"))
	if err != nil {
		return Migrations{}, fmt.Errorf("reading migration counters: %w", err)
	}
	return ParseVMStat(data)
}

// Since returns the difference between an earlier reading and this one.
// Counters that ran backwards give 0.
func (m Migrations) Since(before Migrations) Migrations {
	since := func(now, then uint64) uint64 { return now - min(now, then) }
	return Migrations{
		Success: since(m.Success, before.Success), Fail: since(m.Fail, before.Fail),
		HugeSuccess: since(
			m.HugeSuccess,
			before.HugeSuccess,
		), HugeFail: since(m.HugeFail, before.HugeFail), HugeSplit: since(m.HugeSplit, before.HugeSplit),
		BalancingMarks: since(m.BalancingMarks,
			before.BalancingMarks), BalancingFaults: since(m.BalancingFaults, before.BalancingFaults),
		BalancingMoved: since(m.BalancingMoved, before.BalancingMoved),
	}
}
