package hosttest

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

// Self is the process that holds the claims of a joined fake.
var Self = claim.Process{PID: 77, StartTicks: 777}

// Join makes a host to act on from a fake, as host/local joins the real
// drivers. Its ledger is in the folder.
func Join(h *fake.Host, folder string, clock func() time.Time) *move.Host {
	ledger := claim.Ledger{Folder: folder, Alive: func(p claim.Process) bool {
		return p == Self || h.Runs(p.PID, p.StartTicks)
	}}
	return &move.Host{Host: operate.Host{
		Sources: observe.Sources{
			Kernel: h, Hypervisors: []observe.Hypervisor{h}, Claims: ledger.Claims,
			Now: clock, HostName: func() (string, error) { return "fake", nil },
		},
		Kernel: h, Control: h, Domains: h, Ledger: ledger, Self: Self, Clock: clock,
	}}
}

// Journal is a journal in a folder on a disk that can be full.
type Journal struct {
	record.Journal
	Full *atomic.Bool
}

// Append fails while the disk is full.
func (j Journal) Append(e journal.Entry) error {
	if j.Full.Load() {
		return unix.ENOSPC
	}
	return j.Journal.Append(e)
}
