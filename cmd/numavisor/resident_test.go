//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The daemon's memory with 200 guests is limited in two ways.
const (
	// liveLimit is the most memory in use on Go's heap at the end of the hour, after a collection:
	// the history, inventories, plans and routes of the API. It hardly depends on the machine: 12.2
	// to 12.4 MiB in five runs, two of them on a busy machine.
	liveLimit = 14 * topology.MiB
	// residentLimit is the most resident memory of the process at any time. 42 MiB are pages of the
	// program's file and of libraries; the kernel can drop them. How far the heap grows before a collection
	// ends depends on the machine: 67 to 72.3 MiB in 20 runs on two machines.
	residentLimit = 80 * topology.MiB
)

// crowdFolder names, to a child, the folder of the host that it watches.
const crowdFolder = "NUMAVISOR_TEST_CROWD"

// TestResidentWith200Guests runs the daemon in a separate process over an hour
// of a simulated clock, and compares its memory with the limits:
// code, libvirt's libraries, 200 guests of four vCPUs on 8 nodes, a full
// history, plans, alarms and metrics. The race detector itself uses memory, so a race build
// excludes this test: 'make unit' runs it again without the detector.
func TestResidentWith200Guests(t *testing.T) {
	if folder := os.Getenv(crowdFolder); folder != "" {
		anHour(t, crowd{linux.Root(folder)})
		return
	}
	c := crowd{linux.Root(t.TempDir())}
	c.write(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), crowdFolder+"="+string(c.root))
	said, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("the daemon: %v\n%s", err, said)
	}
	t.Logf("%s", said)
	if live := printed(t, said, "HeapLive"); live > liveLimit {
		t.Errorf("the daemon had %v in use on its heap; at most %v are allowed", live, liveLimit)
	}
	if resident := printed(t, said, "VmHWM"); resident > residentLimit {
		t.Errorf("the daemon had %v resident; at most %v are allowed", resident, residentLimit)
	}
}

// printed returns a figure that the daemon's process printed in the form of /proc/self/status.
func printed(t *testing.T, said []byte, name string) topology.Bytes {
	t.Helper()
	line := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(said)
	if line == nil {
		t.Fatalf("the daemon printed no %s:\n%s", name, said)
	}
	kib, err := strconv.ParseUint(string(line[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return topology.Bytes(kib) * topology.KiB
}

// crowd is a host of 8 nodes with 200 guests, whose figures are in files of a
// folder.
type crowd struct{ root linux.Root }

func (c crowd) host(t *testing.T) *fake.Host {
	t.Helper()
	h := fake.MustNew("nodes:8 cores:64 memory:256G")
	for i := range 200 {
		config := inventory.Config{VCPUs: 4, Memory: 4 * topology.GiB, Source: "anonymous", Immediate: true,
			NUMATune: &inventory.NUMATune{Mode: "restrictive", Nodes: topology.SetOf(topology.NodeID(i % 8))}}
		if err := h.Add(fake.Definition{Name: fmt.Sprintf("vm%03d", i), Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// anHour runs the daemon for an hour, queries everything that it shows, and
// prints its peak memory.
func anHour(t *testing.T, c crowd) {
	t.Helper()
	frugal()
	runtime.MemProfileRate = 0 // as in a program that does not profile itself
	qemu := libvirt.New("test:///default")
	_, err := qemu.Capabilities(t.Context()) // a daemon has libvirt loaded
	if err != nil && !errors.Is(err, libvirt.ErrNoLibrary) {
		t.Fatal(err)
	}
	if err == nil {
		defer qemu.Close()
	}
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := c.host(t)
		sight := &crowdWatcher{Watcher: watch.New(watch.Options{Root: c.root}), started: time.Now()}
		defer func() { _ = sight.Close() }()
		ledger := claim.Ledger{Folder: filepath.Join(folder, "claims"), Alive: func(claim.Process) bool { return true }}
		d := daemon.New(daemon.Options{
			Host: &move.Host{
				Host: operate.Host{
					Sources: observe.Sources{
						Kernel:      h,
						Hypervisors: []observe.Hypervisor{h},
						Claims:      ledger.Claims,
						Now:         time.Now,
						HostName:    os.Hostname,
					},
					Kernel:  h,
					Control: h,
					Domains: h,
					Ledger:  ledger,
					Clock:   time.Now,
				},
			},
			// one: what a look at the fake takes is the fake's
			Watcher: sight, Journal: record.Journal{Folder: folder}, Records: folder, Self: local.OwnCost,
			Plan: time.Minute, Look: 2 * time.Hour,
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		page := metricsPage(ctx, d)
		api := fleetofone.New(ctx, fleetofone.Options{Local: &d.Host.Host, Daemon: d, Version: "test"})
		defer api.Wait()
		time.Sleep(coarse)
		for range 6 {
			time.Sleep(time.Minute)
			answer := httptest.NewRecorder()
			page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			vms := httptest.NewRecorder()
			api.ServeHTTP(vms, httptest.NewRequest(http.MethodGet, "/v1/vms?limit=1000", nil))
			if !strings.Contains(vms.Body.String(), `"vm199"`) {
				t.Errorf("the list of VMs has not the last guest: %.500s", vms.Body.String())
			}
			if !strings.Contains(answer.Body.String(), `"vm199"`) {
				t.Errorf("metrics do not tell of the last guest:\n%.500s",
					answer.Body.String()[max(0, answer.Body.Len()-500):])
			}
		}
		if s, err := d.Status(ctx); err != nil || len(s.Guests) != 200 || s.Totals.Samples < 600 ||
			s.Totals.Plans < 50 {
			t.Errorf("%d guests, %d samples, error %v", len(s.Guests), s.Totals.Samples, err)
		}
		runtime.GC()
		var heap runtime.MemStats
		runtime.ReadMemStats(&heap)
		fmt.Printf("HeapLive: %d kB\n", heap.HeapAlloc/1024)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if bytes.HasPrefix(line, []byte("VmHWM")) || bytes.HasPrefix(line, []byte("Rss")) {
			fmt.Printf("%s", line)
		}
	}
}

// coarse is how long a history holds means of ten seconds, before its last five
// minutes, which it holds second by second.
const coarse = 55 * time.Minute

// crowdWatcher observes busy guests. For the time that the history later
// reduces to means, each of its samples takes five seconds of the clock, and the
// daemon pauses for as long.
type crowdWatcher struct {
	*watch.Watcher
	started time.Time
}

func (w *crowdWatcher) Sample() inventory.Sample {
	if time.Since(w.started) < coarse {
		time.Sleep(5 * time.Second)
	}
	// A real daemon sleeps nearly all the time, and Go collects its garbage
	// meanwhile; the simulated clock leaves no time for that.
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 4e6}, nil)
	s := w.Watcher.Sample()
	for i := range s.Guests {
		if l := &s.Guests[i].Load; l.Window > 0 {
			l.CPU, l.Wait = 1.3, 0.02
			s.Guests[i].CPUByNode = map[topology.NodeID]float64{topology.NodeID(i % 8): 1.3}
		}
	}
	return s
}

// write makes the files that the watcher reads.
func (c crowd) write(t *testing.T) {
	t.Helper()
	h := c.host(t)
	for _, n := range h.Nodes().Nodes {
		c.file(
			t,
			fmt.Sprintf("Node %d MemTotal: %d kB\nNode %[1]d MemFree: %d kB\n", n.ID, n.Memory/topology.KiB,
				n.Free/topology.KiB),
			fmt.Sprintf("sys/devices/system/node/node%d/meminfo", n.ID),
		)
	}
	var stat, sched strings.Builder
	for _, cpu := range h.Nodes().CPUs {
		fmt.Fprintf(&stat, "cpu%d 1000 0 0 1000 0 0 0 0 0 0\n", cpu.ID)
		fmt.Fprintf(&sched, "cpu%d 0 0 0 0 0 0 123 456 9\n", cpu.ID)
	}
	c.file(t, stat.String(), "proc/stat")
	c.file(t, "version 15\ntimestamp 4294967296\n"+sched.String(), "proc/schedstat")
	c.file(t, "pgmigrate_success 0\npgmigrate_fail 0\nnuma_pages_migrated 0\n", "proc/vmstat")
	c.file(t, "cpuset cpu io memory hugetlb pids\n", "sys/fs/cgroup/cgroup.controllers")
	for i := range 200 {
		g, _ := h.Guest(fmt.Sprintf("vm%03d", i))
		c.writeGuest(t, g, topology.NodeID(i%8))
	}
}

func (c crowd) writeGuest(t *testing.T, g inventory.Guest, home topology.NodeID) {
	t.Helper()
	group := fmt.Sprintf("machine/qemu-%d-%s.libvirt-qemu", g.PID, g.Name)
	c.file(t, "0::/"+group+"/emulator\n", "proc", strconv.Itoa(g.PID), "cgroup")
	for _, thread := range g.Seen.Threads {
		task := fmt.Sprintf("proc/%d/task/%d", g.PID, thread.TID)
		c.file(t, thread.Name+"\n", task, "comm")
		c.file(t, "1000000000 1000 7\n", task, "schedstat")
		c.file(t,
			fmt.Sprintf("%d (%s) S 1 %s %d 0 0 0\n", thread.TID, thread.Name, strings.Repeat("0 ", 34), thread.LastCPU),
			task, "stat")
	}
	var anon, none strings.Builder
	for n := range topology.NodeID(8) {
		fmt.Fprintf(&anon, " N%d=%d", n, most(n == home))
		fmt.Fprintf(&none, " N%d=0", n)
	}
	c.file(t, "", "sys/fs/cgroup", group, "cgroup.procs")
	c.file(t, "anon"+anon.String()+"\nfile"+none.String()+"\nshmem"+none.String()+"\n", "sys/fs/cgroup", group,
		"memory.numa_stat")
	c.file(t, "total=0"+none.String()+"\n", "sys/fs/cgroup", group, "hugetlb.2MB.numa_stat")
}

// most is a guest's memory on its home node, or a little on another: a history
// is largest where guests have memory everywhere.
func most(home bool) topology.Bytes {
	if home {
		return 3600 * topology.MiB
	}
	return 64 * topology.MiB
}

func (c crowd) file(t *testing.T, text string, elements ...string) {
	t.Helper()
	path := filepath.Join(append([]string{string(c.root)}, elements...)...)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
