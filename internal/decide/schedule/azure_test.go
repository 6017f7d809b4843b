package schedule

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// strandedBelow is the number of vCPUs of the smallest VMs that count when the room of a node
// is called useful.
const strandedBelow = 8

// arrival is a request of the trace of 2017, with the time until it leaves in seconds; 0: it stays.
type arrival struct {
	at, stays int
	vm        demandedVM
}

// readArrivals reads the arrivals derived from AzurePublicDatasetV1 (CC-BY 4.0, Cortez et al., SOSP
// 2017): flavours by letter, arrivals by time, and the bins of their lifetimes.
func readArrivals(tb testing.TB, folder string) []arrival {
	tb.Helper()
	flavours, shortest := map[string]demandedVM{}, map[int]int{}
	lines(tb, filepath.Join(folder, "flav_map.txt"), func(first, rest string) {
		cpus, memory, _ := strings.Cut(first, ",")
		gib, _ := strconv.ParseFloat(memory, 64)
		flavours[rest] = demandedVM{number(tb, cpus), gib, 1}
	})
	lines(tb, filepath.Join(folder, "interval_map.txt"), func(seconds, bin string) {
		if b := number(tb, bin); shortest[b] == 0 {
			shortest[b] = max(1, number(tb, seconds))
		}
	})
	var out []arrival
	lines(tb, filepath.Join(folder, "v1.dev.txt"), func(at, list string) {
		for _, letter := range strings.Split(list, ",") {
			if vm, ok := flavours[letter]; ok {
				out = append(out, arrival{at: number(tb, at), vm: vm})
			}
		}
	})
	i := 0
	lines(tb, filepath.Join(folder, "v1.dev.c2100000.txt"), func(_, list string) {
		for _, end := range strings.Split(list, ",") {
			if end == "" || end == "|" {
				continue
			}
			if end[0] == 'U' {
				out[i].stays = shortest[number(tb, end[1:])]
			}
			i++
		}
	})
	if i != len(out) {
		tb.Fatalf("%d arrivals, %d lifetimes", len(out), i)
	}
	return out
}

func number(tb testing.TB, text string) int {
	tb.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// lines calls a function for the two words of each line.
func lines(tb testing.TB, path string, each func(first, rest string)) {
	tb.Helper()
	file, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		if first, rest, ok := strings.Cut(s.Text(), " "); ok {
			each(first, rest)
		}
	}
	if err := s.Err(); err != nil {
		tb.Fatal(err)
	}
}

// replay makes a trace of the arrivals from an index on. Hosts have two nodes of 32 CPUs. A VM
// that is larger than a node has two cells.
func replay(all []arrival, from, hosts, requests int, gib float64) trace {
	var tr trace
	for range hosts {
		tr.hosts = append(tr.hosts, [2]freeNode{{32, gib}, {32, gib}})
	}
	all = all[from:min(len(all), from+requests)]
	tr.leave = make([][]int, len(all))
	next := 0
	ends := map[int][]int{} // VMs by the second in which they end
	for i, a := range all {
		if next == 0 {
			next = a.at
		}
		for ; next <= a.at; next++ {
			tr.leave[i] = append(tr.leave[i], ends[next]...)
			delete(ends, next)
		}
		if a.stays > 0 {
			ends[a.at+a.stays] = append(ends[a.at+a.stays], i)
		}
		if a.vm.gib > gib {
			a.vm.cells = 2
		}
		tr.requests = append(tr.requests, a.vm)
	}
	return tr
}

// The second table of docs/benchmarks.md: VMs placed before the first refusal while others leave.
// NUMAVISOR_AZURE names a folder with the files that readArrivals reads.
func BenchmarkPackingArrivals(b *testing.B) {
	folder := os.Getenv("NUMAVISOR_AZURE")
	if folder == "" {
		b.Skip("NUMAVISOR_AZURE is not set: it names a folder with v1.dev.txt and its maps")
	}
	all := readArrivals(b, folder)
	for _, gib := range []float64{64, 128} {
		for _, hosts := range []int{40, 200} {
			for _, rule := range append(packingRules, packingRule{name: "schedule"}) {
				b.Run(fmt.Sprintf("node=%.0fGiB/hosts=%d/%s", gib, hosts, rule.name), func(b *testing.B) {
					packArrivals(b, all, hosts, gib, rule)
				})
			}
		}
	}
}

func packArrivals(b *testing.B, all []arrival, hosts int, gib float64, rule packingRule) {
	b.Helper()
	const rounds = 6
	var sum packed
	for range b.N {
		for i := range rounds {
			tr := replay(all, i*len(all)/(rounds+2), hosts, 60_000, gib)
			r := tr.place(b, rule)
			if r.first == len(tr.requests) {
				b.Fatalf("none of %d requests was refused", len(tr.requests))
			}
			sum.add(tr, r, tr.bound(b))
		}
	}
	sum.report(b)
}
