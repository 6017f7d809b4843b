package handoff_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
	decide "github.com/numavisor/numavisor/internal/decide/handoff"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// threads are those of one guest whose vCPUs are idle.
type threads struct {
	socket string
	lock   sync.Mutex
	pins   map[words.VCPUID]topology.CPUSet
}

func (t *threads) ConfineVCPU(_, _ int, vcpu words.VCPUID, cpus topology.CPUSet) error {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.pins[vcpu] = cpus
	return nil
}

func (t *threads) RunTimeOf(int, int) (time.Duration, error) { return 0, nil }

func (t *threads) ConnectAgent(_ int, port string, _ uint32) (*os.File, error) {
	if port != guest.Port {
		return nil, fmt.Errorf("port %q is not the agent's", port)
	}
	return linux.ConnectUnix(t.socket)
}

// agent is a guest's agent at the other end of the socket.
type agent struct {
	*testing.T
	conn  net.Conn
	lines guest.Lines
	epoch uint64
}

// wants reports a demand and waits until the host has granted as many vCPUs.
func (a *agent) wants(used guest.VCPUs, running int64, granted int) guest.VCPUs {
	a.Helper()
	deadline := time.Now().Add(time.Minute)
	var buffer [4096]byte
	for {
		line, err := guest.Encode(&guest.Report{
			V: guest.Version, Boot: "00000001", Epoch: a.epoch, Present: guest.Of(0, 1, 2, 3), Used: used,
			Means: guest.Partition, Running: running,
		})
		if err != nil {
			a.Fatal(err)
		}
		if _, err := a.conn.Write(line); err != nil {
			a.Fatal(err)
		}
		n, err := a.conn.Read(buffer[:])
		if err != nil {
			a.Fatal(err)
		}
		a.lines.Add(buffer[:n], func(line []byte) {
			if g, err := guest.DecodeGrant(bytes.Clone(line)); err != nil {
				a.Error(err)
			} else if g.Epoch >= a.epoch {
				a.epoch, used = g.Epoch, g.VCPUs
			}
		})
		if used.Len() == granted {
			return used
		}
		if time.Now().After(deadline) {
			a.Fatalf("granted %v, want %d vCPUs", used, granted)
		}
	}
}

// mirrored is an observed guest of four vCPUs on CPUs 0 to 3.
func mirrored() inventory.Guest {
	p := &words.Placement{Handoff: &words.Handoff{Min: 1, Weight: 100, First: topology.SetOf[topology.CPUID](0)}}
	g := inventory.Guest{Name: "m", PID: 1, State: "running", Placement: p}
	for v := range 4 {
		id := words.VCPUID(v)
		p.VCPUs = append(p.VCPUs, words.VCPU{ID: id, CPUs: topology.SetOf(topology.CPUID(v))})
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{TID: 100 + v, VCPU: &id})
	}
	return g
}

// The runner connects to a guest's port, grants what it demands, and after its end
// continues with what it recorded.
func TestRunnerContinuesAfterItsEnd(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:2")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	th := &threads{socket: filepath.Join(folder, "port"), pins: map[words.VCPUID]topology.CPUSet{}}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", th.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	a := &agent{T: t}
	for _, start := range []struct {
		used    guest.VCPUs
		running int64
		granted int
	}{{guest.Of(0, 1, 2, 3), 3000, 3}, {guest.Of(), 3000, 3}} {
		r := &handoff.Runner{
			Rules: decide.Rules{CPUs: topo.CPUSet()}, Threads: th, File: filepath.Join(folder, "handoff.json"), Log: t.Logf,
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		r.Follow([]inventory.Guest{mirrored()}, &topo)
		if a.conn, err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
		if start.used.Len() == 0 {
			start.used = guest.Of(0)
		}
		before := a.epoch
		a.wants(start.used, start.running, start.granted)
		// The runner publishes what guests hold at the end of its step: the agent may have its grant before.
		shown := func() bool {
			h := r.Holdings()["m"]
			return h.CPUs.Len() == start.granted && h.Min == 1 && h.Means == string(guest.Partition)
		}
		for deadline := time.Now().Add(10 * time.Second); !shown() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if !shown() {
			t.Errorf("the runner publishes %+v", r.Holdings()["m"])
		}
		if a.epoch < before {
			t.Errorf("epoch %d after %d", a.epoch, before)
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		_ = a.conn.Close()
		for v := range 3 {
			if got := th.pins[words.VCPUID(v)]; !got.Equal(topology.SetOf(topology.CPUID(v))) {
				t.Errorf("vCPU %d runs on CPUs %v", v, got)
			}
		}
		if got := th.pins[3]; got.IsEmpty() || !got.SubsetOf(topology.SetOf[topology.CPUID](0, 1, 2)) {
			t.Errorf("vCPU 3 has no CPU of its own, and runs on CPUs %v", got)
		}
	}
}

// While a VM is being started, an observation may show its process without the threads of its vCPUs. That is no error:
// its CPUs are reserved, and the hand-over begins with the observation that shows them.
func TestAGuestWithoutThreadsStarts(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:2")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	th := &threads{socket: filepath.Join(folder, "port"), pins: map[words.VCPUID]topology.CPUSet{}}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", th.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	r := &handoff.Runner{
		Rules: decide.Rules{CPUs: topo.CPUSet()}, Threads: th, File: filepath.Join(folder, "handoff.json"),
		Log: func(format string, args ...any) { t.Errorf("logged: "+format, args...) },
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	a := &agent{T: t}
	defer func() { // the runner first: it would log that the agent closed the connection
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if a.conn != nil {
			_ = a.conn.Close()
		}
	}()
	early := mirrored()
	early.Seen.Threads = early.Seen.Threads[:1]
	r.Follow([]inventory.Guest{early}, &topo)
	record := handoff.Record{}
	for deadline := time.Now().Add(time.Minute); len(record.Grants) == 0; time.Sleep(time.Millisecond) {
		if record, err = handoff.ReadRecord(r.File); err != nil || time.Now().After(deadline) {
			t.Fatalf("no CPU is reserved for the guest: %v", err)
		}
	}
	r.Follow([]inventory.Guest{mirrored()}, &topo)
	if a.conn, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	a.wants(guest.Of(0, 1, 2, 3), 3000, 3)
}
