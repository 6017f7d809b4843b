package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// place is a node of a host.
type place struct {
	host string
	node topology.NodeID
}

// checkClaims finds CPUs and memory, huge pages included, that are claimed twice, in one server's state of one moment.
// CPUs that VMs share are claimed twice if they carry more vCPUs than the default policy allows, or if one VM has more
// vCPUs than a node has shared CPUs.
func checkClaims(vms []fleetapi.VM) error {
	t, err := topology.Synthetic(machine)
	if err != nil {
		return err
	}
	limits := map[topology.NodeID]topology.Bytes{} // of all page sizes: pools of huge pages grow and shrink
	cpus := map[topology.NodeID]int{}
	for _, n := range t.Nodes {
		limits[n.ID], cpus[n.ID] = n.Memory, n.CPUs.Len()
	}
	memory, owner := map[place]topology.Bytes{}, map[string]string{}
	sharing := map[place]*sharedCPUs{}
	var broken []error
	for i := range vms {
		v := &vms[i]
		for host, placement := range placements(v) {
			for _, r := range placement.Reservations {
				at := place{host, r.Node}
				if memory[at] += r.Memory; memory[at] > limits[r.Node] {
					broken = append(broken, fmt.Errorf("host %s, node %d: %v claimed of %v", host, r.Node, memory[at],
						limits[r.Node]))
				}
				for cpu := range r.Exclusive.All() {
					key := fmt.Sprintf("%s/%d", host, cpu)
					if other := owner[key]; other != "" && other != v.Name {
						broken = append(broken, fmt.Errorf("CPU %d of host %s is claimed by %s and %s", cpu, host,
							other, v.Name))
					}
					owner[key] = v.Name
				}
				if sharing[at] == nil {
					sharing[at] = &sharedCPUs{cpus: cpus[r.Node]}
				}
				sharing[at].add(placement.CPUMode, r)
			}
		}
	}
	for at, s := range sharing {
		if err := s.check(); err != nil {
			broken = append(broken, fmt.Errorf("host %s, node %d: %w", at.host, at.node, err))
		}
	}
	return errors.Join(broken...)
}

// sharedCPUs are the CPUs of a node that VMs share.
type sharedCPUs struct {
	cpus, vcpus, widest int // widest is the greatest number of vCPUs of one VM
}

func (s *sharedCPUs) add(mode guest.CPUMode, r guest.Reservation) {
	s.cpus -= r.Exclusive.Len()
	if mode != guest.CPUExclusive {
		s.vcpus, s.widest = s.vcpus+r.VCPUs, max(s.widest, r.VCPUs)
	}
}

func (s *sharedCPUs) check() error {
	if float64(s.vcpus) > policy.DefaultOvercommit*float64(s.cpus) || s.widest > s.cpus {
		return fmt.Errorf("%d vCPUs, %d of one VM, claimed on %d shared CPUs", s.vcpus, s.widest, s.cpus)
	}
	return nil
}

// placements are those of a VM by host: it has two while it migrates.
func placements(v *fleetapi.VM) map[string]guest.Placement {
	of := map[string]guest.Placement{}
	if v.Host != "" {
		of[v.Host] = v.Placement
	}
	if m := v.Migration; m != nil {
		of[m.To] = m.Placement
	}
	return of
}

// watch checks the claims that each server knows, until ctx ends.
func (f *aFleet) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		for i, c := range f.clients {
			one, cancel := context.WithTimeout(ctx, requestTime)
			vms, err := c.VMs(one, fleetapi.Filter{})
			cancel()
			if err == nil {
				if err := f.lasts(ctx, i, checkClaims(vms)); err != nil {
					return fmt.Errorf("server s%d: %w", i, err)
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// lateTime is how late a server's state may be.
const lateTime = 10 * time.Second

// lasts returns an error that a server's state still has after lateTime. A server knows its own changes at once, and
// those of others when it hears of them: a VM that another server has removed may seem to have the CPUs of one
// that this server has just placed. What VMs really have twice, their host sees (hypervisor.checkCPUs).
func (f *aFleet) lasts(ctx context.Context, server int, err error) error {
	for end := time.Now().Add(lateTime); err != nil && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(100 * time.Millisecond)
		one, cancel := context.WithTimeout(ctx, requestTime)
		vms, unread := f.clients[server].VMs(one, fleetapi.Filter{})
		cancel()
		if unread == nil {
			err = checkClaims(vms)
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the last comparison decides
	}
	return err
}

// agree returns once all servers know what users were answered, and all hosts run it.
func (f *aFleet) agree(ctx context.Context, h *history) error {
	err := errors.New("not checked")
	for err != nil && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		now := f.allAlive()
		for i := range f.clients {
			if at := f.compare(ctx, i, h); at != nil {
				now = fmt.Errorf("server s%d: %w", i, at)
				break
			}
		}
		if now == nil || ctx.Err() == nil { // else it is only that the time is over
			err = now
		}
	}
	return err
}

// compare checks one server's state, and the hosts against it.
func (f *aFleet) compare(ctx context.Context, server int, h *history) error {
	one, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	vms, err := f.clients[server].VMs(one, fleetapi.Filter{})
	if err != nil {
		return err
	}
	if err := checkClaims(vms); err != nil {
		return err
	}
	found, runs := map[string]bool{}, map[string]string{}
	for i := range vms {
		v := &vms[i]
		want, ok := h.vms[v.Name]
		switch {
		case !ok:
			return fmt.Errorf("VM %s was deleted and is %s: %s", v.Name, v.State, detail(v))
		case v.Migration != nil:
			return fmt.Errorf("the migration of VM %s has no end: %s", v.Name, detail(v))
		case v.Run != want:
			return fmt.Errorf("VM %s should be %s, and the record says %s", v.Name, want, v.Run)
		case v.State == fleetapi.VMFailed: // its host retries: a failure that lasts until the end is one of the fleet
			return fmt.Errorf("VM %s on %s should be %s, and is failed: %s", v.Name, v.Host, want, v.Status.Message)
		case v.Host != "" && want == fleet.Running && v.State != fleetapi.VMRunning,
			v.Host != "" && want == fleet.Stopped && v.State != fleetapi.VMStopped:
			return fmt.Errorf("VM %s on %s should be %s, and is %s: %s", v.Name, v.Host, want, v.State, detail(v))
		}
		found[v.Name] = true
		if v.Host != "" && want == fleet.Running {
			runs[v.Name] = v.Host
		}
	}
	for name := range h.vms {
		if !found[name] {
			return fmt.Errorf("VM %s is lost", name)
		}
	}
	return f.compareHosts(runs, found)
}

// detail is a VM as the API shows it, for a report.
func detail(v *fleetapi.VM) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// compareHosts checks what the hosts have against the records.
func (f *aFleet) compareHosts(runs map[string]string, known map[string]bool) error {
	for _, p := range f.hosts {
		vms, err := f.vmsOf(p.Name)
		if err != nil {
			return err
		}
		for name, vm := range vms {
			switch {
			case vm.Running && runs[name] != p.Name:
				return fmt.Errorf("VM %s runs on %s, and the record says %q", name, p.Name, runs[name])
			case !known[name]:
				return fmt.Errorf("VM %s was deleted and is on %s", name, p.Name)
			case !vm.Running && runs[name] == p.Name:
				return fmt.Errorf("VM %s does not run on %s", name, p.Name)
			}
			if vm.Running {
				delete(runs, name)
			}
		}
	}
	for name, host := range runs {
		return fmt.Errorf("VM %s is not on host %s", name, host)
	}
	if name, err := stillPaused(f.shared); err != nil || name != "" {
		return errors.Join(err, fmt.Errorf("VM %s is paused for a migration that is over", name))
	}
	return nil
}

// violations returns what the hosts have seen at once: a second start.
func (f *aFleet) violations() error {
	text, err := os.ReadFile(filepath.Join(f.shared, "violations"))
	if err == nil {
		return errors.New(string(text))
	}
	return nil
}
