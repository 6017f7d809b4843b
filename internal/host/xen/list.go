package xen

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// domain is a line of `xl list -c -n`.
type domain struct {
	ID     int
	Name   string
	Memory topology.Bytes
	VCPUs  int
	State  string // six flags: running, blocked, paused, shutdown, crashed, dying
	Ran    bool   // for a tenth of a second at least
	Pool   string
	// Nodes is the node affinity, as xl prints it: "all", "none" or a list. It is not where the memory is.
	Nodes string
}

// controlDomain is the identity of dom0, which manages the host.
const controlDomain = 0

const (
	// xl prints the pool without a space before it if the name has 16 characters or more.
	pausedFlag, shutdownFlag, reasonFlag, dyingFlag = 2, 3, 4, 5
	maxDomains                                      = 1 << 16 // Xen's limit of identities is 32751
)

// stateLetters are running, blocked, paused, shut down, the reason of that, and dying.
const stateLetters = `[r-][b-][p-][s-][rscwS?-][d-]`

var domainLine = regexp.MustCompile(
	`^(.*\S)\s+(\d{1,9})\s+(\d{1,12})\s+(\d{1,6})\s+(` + stateLetters + `)\s+(\d+\.\d)\s*(\S.*?)\s+(\S+)$`)

// parseDomains reads the output of `xl list -c -n`. It ends with an error at the first line that
// it cannot read: a missing line would be a missing guest.
func parseDomains(out []byte) ([]domain, error) {
	var all []domain
	for i, line := range strings.Split(strings.TrimRight(string(out), "\n"), "\n") {
		if i == 0 {
			if !strings.HasPrefix(line, "Name") || !strings.HasSuffix(strings.TrimSpace(line), "NODE Affinity") {
				return nil, fmt.Errorf("xl list -c -n: no heading in %.80q", line)
			}
			continue
		}
		f := domainLine.FindStringSubmatch(line)
		if f == nil || len(all) >= maxDomains {
			return nil, fmt.Errorf("xl list -c -n: cannot parse %.120q", line)
		}
		d := domain{Name: f[1], State: f[5], Ran: f[6] != "0.0", Pool: f[7], Nodes: f[8]}
		d.ID, d.VCPUs = number(f[2]), number(f[4])
		mib, err := mebibytes(f[3])
		if err != nil {
			return nil, fmt.Errorf("xl list -c -n: in %.120q: %w", line, err)
		}
		d.Memory = mib
		all = append(all, d)
	}
	return all, nil
}

// number reads digits that a regular expression has bounded.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// isUnfinished reports whether a domain that has no configuration yet, or none any more, is being made or ended.
// Domains of other programs have none either.
func (d *domain) isUnfinished() bool {
	return d.Memory == 0 || d.VCPUs == 0 || d.runState() == "shutoff" || d.State[pausedFlag] == 'p' && !d.Ran
}

// runState returns the state in the words of an inventory.
func (d *domain) runState() string {
	switch {
	case d.State[shutdownFlag] == 's' || d.State[dyingFlag] == 'd':
		return "shutoff"
	case d.State[pausedFlag] == 'p':
		return "paused"
	}
	return "running"
}

// vcpu is a line of `xl vcpu-list`.
type vcpu struct {
	ID         int
	CPU        int // on which it last ran; -1: offline
	Running    bool
	Blocked    bool // idle; a vCPU that is neither this nor running waits for a CPU
	Run        time.Duration
	Hard, Soft topology.CPUSet // nil set: all CPUs
}

var vcpuLine = regexp.MustCompile(
	`^(.*\S)\s+(\d{1,9})\s+(\d{1,6})\s+(\d{1,6}|-)\s+([r-][b-][p-])\s+(\d{1,9})\.(\d)\s+(\S+) / (\S+)$`)

// parseVCPUs reads the output of `xl vcpu-list`, by domain.
func parseVCPUs(out []byte) (map[int][]vcpu, error) {
	all := map[int][]vcpu{}
	for i, line := range strings.Split(strings.TrimRight(string(out), "\n"), "\n") {
		if i == 0 {
			if !strings.HasPrefix(line, "Name") || !strings.Contains(line, "VCPU") {
				return nil, fmt.Errorf("xl vcpu-list: no heading in %.80q", line)
			}
			continue
		}
		f := vcpuLine.FindStringSubmatch(strings.TrimRight(line, " "))
		if f == nil {
			return nil, fmt.Errorf("xl vcpu-list: cannot parse %.120q", line)
		}
		v := vcpu{ID: number(f[3]), CPU: -1, Running: f[5][0] == 'r', Blocked: f[5][1] == 'b',
			Run: time.Duration(number(f[6]))*time.Second + time.Duration(number(f[7]))*100*time.Millisecond}
		if f[4] != "-" {
			v.CPU = number(f[4])
		}
		var errs [2]error
		v.Hard, errs[0] = parseAffinity(f[8])
		v.Soft, errs[1] = parseAffinity(f[9])
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("xl vcpu-list: in %.120q: %w", line, err)
		}
		id := number(f[2])
		all[id] = append(all[id], v)
	}
	return all, nil
}

// parseAffinity reads a set of CPUs as xl prints it; all CPUs are the empty set.
func parseAffinity(list string) (topology.CPUSet, error) {
	if list == "all" || list == "none" || list == "any" {
		return topology.CPUSet{}, nil
	}
	return topology.ParseSet[topology.CPUID](list)
}

// config is what `xl list -l` says about a domain.
type config struct {
	Domid  *int `json:"domid"`
	Config struct {
		Create struct {
			Type string `json:"type"`
			Name string `json:"name"`
			UUID string `json:"uuid"`
		} `json:"c_info"`
		Build struct {
			MaxVCPUs  int `json:"max_vcpus"`
			Scheduler struct {
				Cap int `json:"cap"` // percent of a CPU; 0: none
			} `json:"sched_params"`
			MaxKiB    uint64 `json:"max_memkb"`
			TargetKiB uint64 `json:"target_memkb"`
			VNUMA     []struct {
				KiB       uint64 `json:"memkb"`
				Distances []int  `json:"distances"`
				Node      int    `json:"pnode"`
				VCPUs     []int  `json:"vcpus"`
			} `json:"vnuma_nodes"`
		} `json:"b_info"`
		PCI []struct {
			Domain uint `json:"domain"`
			Bus    uint `json:"bus"`
			Device uint `json:"dev"`
			Func   uint `json:"func"`
		} `json:"pcidevs"`
		Disks []disk            `json:"disks"`
		NICs  []json.RawMessage `json:"nics"`
	} `json:"config"`
}

// parseConfigs reads the JSON of `xl list -l`, by domain.
func parseConfigs(out []byte) (map[int]config, error) {
	var list []config
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("xl list -l: %w", err)
	}
	all := make(map[int]config, len(list))
	for _, c := range list {
		if c.Domid == nil {
			return nil, errors.New("xl list -l: a domain without domid")
		}
		b := &c.Config.Build
		for _, n := range b.VNUMA {
			if n.KiB > math.MaxUint64>>20 {
				return nil, fmt.Errorf("xl list -l: domain %d: memkb %d is out of range", *c.Domid, n.KiB)
			}
		}
		if b.MaxKiB > math.MaxUint64>>20 || b.TargetKiB > math.MaxUint64>>20 {
			return nil, fmt.Errorf("xl list -l: domain %d: max_memkb %d, target_memkb %d are out of range", *c.Domid,
				b.MaxKiB, b.TargetKiB)
		}
		all[*c.Domid] = c
	}
	return all, nil
}

var (
	poolLine    = regexp.MustCompile(`^(.*\S)\s+\d+\s+(\S+)\s+([yn])\s+(\d+)$`)
	poolCPULine = regexp.MustCompile(`^(.*\S)\s+([\d,-]+)$`)
)

// parsePools reads the outputs of `xl cpupool-list` and `xl cpupool-list -c`.
func parsePools(list, cpus []byte) ([]inventory.Pool, error) {
	var all []inventory.Pool
	byName := map[string]int{}
	for line := range tableLines(list) {
		f := poolLine.FindStringSubmatch(line)
		if f == nil {
			return nil, fmt.Errorf("xl cpupool-list: cannot parse %.120q", line)
		}
		byName[f[1]] = len(all)
		all = append(all, inventory.Pool{Name: f[1], Scheduler: f[2]})
	}
	for line := range tableLines(cpus) {
		f := poolCPULine.FindStringSubmatch(line)
		if f == nil {
			continue // a pool without CPUs
		}
		set, err := topology.ParseSet[topology.CPUID](f[2])
		if err != nil {
			return nil, fmt.Errorf("xl cpupool-list -c: in %.120q: %w", line, err)
		}
		if i, ok := byName[f[1]]; ok {
			all[i].CPUs = set
		}
	}
	return all, nil
}

// tableLines yields the lines of a table below its heading.
func tableLines(out []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, line := range strings.Split(string(out), "\n") {
			if line = strings.TrimSpace(line); i > 0 && line != "" && !yield(line) {
				return
			}
		}
	}
}
