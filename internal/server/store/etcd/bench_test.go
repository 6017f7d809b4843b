package etcd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/topology"
)

func openBench(b *testing.B) *etcd.Store {
	b.Helper()
	s, err := etcd.Open(b.Context(), etcd.Config{Folder: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// encode is the JSON of a record.
func encode(b *testing.B, v any) []byte {
	b.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// vm is a record of a VM of four vCPUs.
func vm(name, host string) fleet.VM {
	v := fleet.VM{
		Name: name, Project: "project", Created: time.Now(), By: "user", Host: host, Run: fleet.Running, Generation: 1,
		Spec:    guest.Spec{Name: name, VCPUs: 4, Memory: 8 * topology.GiB},
		Machine: fleet.Machine{Disks: []fleet.Disk{{Path: "/var/lib/libvirt/images/" + name, Format: "qcow2"}}},
		Placement: guest.Placement{
			Guest: name, Nodes: topology.SetOf[topology.NodeID](3), Movable: true,
			Cells: []guest.Cell{{VCPUs: topology.SetOf[guest.VCPUID](0, 1, 2, 3), Memory: 8 * topology.GiB,
				Nodes: topology.SetOf[topology.NodeID](3)}},
		},
	}
	for i := range guest.VCPUID(4) {
		v.Placement.VCPUs = append(v.Placement.VCPUs, guest.VCPU{ID: i, CPUs: topology.SetOf[topology.CPUID](24, 25, 26, 27)})
	}
	return v
}

// BenchmarkClaims has eight writers that each put VMs on random ones of 200 hosts: a transaction
// writes the VM and the claims of its host, if these are as they were. The goal is 500 a second.
func BenchmarkClaims(b *testing.B) {
	s := openBench(b)
	const hosts, writers = 200, 8
	var made, conflicts atomic.Int64
	var all sync.WaitGroup
	b.ResetTimer()
	for w := range writers {
		all.Go(func() {
			draw := rand.New(rand.NewPCG(uint64(w), 1))
			revisions := map[string]int64{}
			for made.Add(1) <= int64(b.N) {
				host := fmt.Sprintf("h%03d", draw.IntN(hosts))
				name := fmt.Sprintf("vm%d-%d", w, draw.Int64())
				for {
					if err := claim(b, s, vm(name, host), revisions); err == nil {
						break
					}
					conflicts.Add(1)
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
	b.ReportMetric(float64(conflicts.Load())/float64(b.N), "conflicts/claim")
}

// claim makes one transaction. After a conflict, revisions has the current one.
func claim(b *testing.B, s store.Store, v fleet.VM, revisions map[string]int64) error {
	b.Helper()
	claims := store.Claims + v.Host
	revision, err := s.Commit(b.Context(), store.Txn{
		If:  []store.Condition{{Key: claims, Revision: revisions[v.Host]}},
		Put: []store.Put{{Key: store.VMs + v.Name, Value: encode(b, v)}, {Key: claims, Value: []byte("{}")}},
	})
	conflict := &store.ConflictError{}
	if errors.As(err, &conflict) {
		r, getErr := s.Get(b.Context(), claims)
		if getErr != nil {
			b.Error(getErr)
			return nil
		}
		revisions[v.Host] = r.Revision
		return err
	}
	if err != nil {
		b.Error(err)
		return nil
	}
	revisions[v.Host] = revision
	return nil
}

// BenchmarkFleet writes the records of 10,000 hosts of eight nodes and of 100,000 VMs, lists all
// VMs, and measures the database and the memory of this process, which includes the
// benchmark's own. Run it with -benchtime 1x.
func BenchmarkFleet(b *testing.B) {
	const hosts, vms = 10_000, 100_000
	for range b.N {
		s := openBench(b)
		b.ReportMetric(resident(b), "empty-MiB-resident")
		report := encode(b, fleet.Report{Program: "1.0", Protocol: 1, Inventory: inventory.Host{
			Name: "host", Topology: fake.MustNew("nodes:8 cores:64 memory:256G").Nodes()}})
		fill := filler{b: b, s: s}
		for i := range hosts {
			name := fmt.Sprintf("host%05d", i)
			fill.add(store.Hosts+name, encode(b, fleet.Host{Name: name, ID: name, Rack: "rack", Joined: time.Now()}))
			fill.add(store.Reports+name, report)
			fill.add(store.Claims+name, []byte("{}"))
		}
		for i := range vms {
			v := vm(fmt.Sprintf("vm%06d", i), fmt.Sprintf("host%05d", i%hosts))
			fill.add(store.VMs+v.Name, encode(b, v))
			fill.add(store.Statuses+v.Name, encode(b, fleet.VMStatus{Name: v.Name, Host: v.Host, Generation: 1,
				Phase: fleet.PhaseRunning, Since: time.Now(), Placement: v.Placement}))
		}
		fill.commit()
		began := time.Now()
		records, _, err := s.List(b.Context(), store.VMs)
		if err != nil || len(records) != vms {
			b.Fatal(len(records), err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s-to-list-VMs")
		size, err := s.Size(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(report)), "B/report")
		b.ReportMetric(float64(len(records[0].Value)), "B/VM")
		b.ReportMetric(float64(size.Total/topology.MiB), "MiB-database")
		b.ReportMetric(resident(b), "full-MiB-resident")
	}
}

// filler writes many records in large transactions.
type filler struct {
	b   *testing.B
	s   store.Store
	txn store.Txn
	n   int
}

func (f *filler) add(key string, value []byte) {
	if len(f.txn.Put) == store.MaxKeys || f.n+len(value) > store.MaxSize/2 {
		f.commit()
	}
	f.txn.Put = append(f.txn.Put, store.Put{Key: key, Value: value})
	f.n += len(value)
}

func (f *filler) commit() {
	if _, err := f.s.Commit(f.b.Context(), f.txn); err != nil {
		f.b.Fatal(err)
	}
	f.txn, f.n = store.Txn{}, 0
}

// resident is the anonymous memory of this process in MiB: not the pages of files, which the kernel
// can drop.
func resident(b *testing.B) float64 {
	b.Helper()
	debug.FreeOSMemory()
	time.Sleep(time.Second)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "RssAnon:" {
			kib, _ := strconv.ParseFloat(string(fields[1]), 64)
			return kib / 1024
		}
	}
	return 0
}
