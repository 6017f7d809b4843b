package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func scheduleCommand() *cobra.Command {
	var hostsFile, requestsFile, policyFile string
	var explain, headroom bool
	var in remote
	c := &cobra.Command{
		Use:                   "schedule {--hosts FILE [--requests FILE] [--headroom] | --server URL --headroom}",
		DisableFlagsInUseLine: true,
		Short:                 "Choose hosts and nodes for VMs among the hosts of a file; changes nothing",
		Long: `Decides on the VMs of a file of requests, one after the other: on which of the hosts
of a file each VM goes, and on which NUMA nodes of the host. Each VM counts as running
from then on. The hosts are inventories ('numavisor capture') or machines described in
one line. The command changes nothing and needs neither root nor a hypervisor.

With --headroom it then says for each host whether all its VMs would fit on the other hosts
if it failed. That needs no requests. With --server instead of --hosts, the server says so for
the hosts and VMs of its fleet as they are now.

Exit status 3: at least one VM was refused, or would not fit if its host failed.`,
		Example: `  numavisor schedule --hosts rack.yaml --requests wanted.yaml
  numavisor schedule --hosts rack.yaml --requests wanted.yaml --explain
  numavisor schedule --hosts rack.yaml --headroom
  numavisor schedule --server prod --headroom
  numavisor schedule --hosts rack.yaml --requests wanted.yaml -o json | jq .summary`,
		Args: takes(0, 0),
	}
	c.Flags().StringVar(&hostsFile, "hosts", "", "file with the hosts, YAML or JSON ('-': standard input)")
	c.Flags().StringVar(&requestsFile, "requests", "", "file with the requests, YAML or JSON ('-': standard input)")
	c.Flags().StringVar(&policyFile, "policy", "", "file with the policy of all hosts (default: the default policy)")
	c.Flags().BoolVar(&explain, "explain", false, "show why each VM got its host, and the next best hosts")
	c.Flags().BoolVar(&headroom, "headroom", false, "show whether the VMs of any one host would fit on the others")
	in.flag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if hostsFile == "" && headroom {
			if client, err := in.client(c, "headroom"); client != nil || err != nil {
				return errorOr(err, func() error { return headroomRemote(c, client) })
			}
		}
		if hostsFile == "" || requestsFile == "" && !headroom {
			return wrongUse("--hosts is needed, and --requests or --headroom; see '%s --help'", c.CommandPath())
		}
		return scheduleFiles(c, hostsFile, requestsFile, policyFile, explain, headroom)
	}
	return c
}

// scheduleFiles decides on the VMs of one file among the hosts of another one.
func scheduleFiles(c *cobra.Command, hostsFile, requestsFile, policyFile string, explain, headroom bool) error {
	fleet, err := readFleet(c.Context(), hostsFile, policyFile)
	if err != nil {
		return err
	}
	var requests []schedule.RequestEntry
	if requestsFile != "" {
		if requests, err = readFile(c.Context(), requestsFile, schedule.ParseRequests); err != nil {
			return err
		}
	}
	var result scheduled
	if result.Result, err = fleet.Replay(requests); err != nil {
		return err
	}
	if headroom {
		result.Headroom = migrate.Headroom(fleet, groups(requests))
	}
	if err := emit(c, result, func(w io.Writer) { result.print(w, explain, requestsFile != "") }); err != nil {
		return err
	}
	return result.partial()
}

// scheduled is the result of the command.
type scheduled struct {
	schedule.Result
	Headroom []migrate.HostHeadroom `json:"headroom,omitempty"`
}

// groups returns what requests say of the groups of their VMs.
func groups(requests []schedule.RequestEntry) map[string]migrate.VM {
	vms := map[string]migrate.VM{}
	for i := range requests {
		for _, name := range requests[i].Names() {
			vms[name] = migrate.VM{Affinity: requests[i].Affinity}
		}
	}
	return vms
}

func (s *scheduled) print(w io.Writer, explain, withRequests bool) {
	if withRequests {
		printScheduled(w, &s.Result, explain)
	}
	if len(s.Headroom) == 0 {
		return
	}
	if withRequests {
		printf(w, "\n")
	}
	rows := [][]string{{"IF IT FAILS", "VMS", "FIT ELSEWHERE", "REASON"}}
	for _, h := range s.Headroom {
		row := []string{text.Visible(h.Host), fmt.Sprint(h.VMs), "all", ""}
		if n := len(h.Missing); n > 0 {
			row[2] = fmt.Sprint(h.VMs - n)
			row[3] = text.Visible(h.Missing[0].VM + ": " + h.Missing[0].Why)
			if !h.Proven {
				row[3] += " (not proven)"
			}
		}
		rows = append(rows, row)
	}
	columns(w, rows)
}

// partial is the error for VMs that were refused, or would not fit if their host failed.
func (s *scheduled) partial() error {
	if n := s.Summary.Refused; n > 0 {
		return partialError{fmt.Errorf("%s refused: see REASON", text.Count(n, "VM was", "VMs were"))}
	}
	missing := 0
	for _, h := range s.Headroom {
		missing += len(h.Missing)
	}
	if missing > 0 {
		return partialError{fmt.Errorf("%s no other host if their host failed: see REASON",
			text.Count(missing, "VM has", "VMs have"))}
	}
	return nil
}

// readFleet reads a file of hosts, and the inventories that it names.
func readFleet(ctx context.Context, hostsFile, policyFile string) (*schedule.Fleet, error) {
	entries, err := readFile(ctx, hostsFile, schedule.ParseHosts)
	if err != nil {
		return nil, err
	}
	p := policy.Policy{}
	if policyFile != "" {
		if p, err = readFile(ctx, policyFile, policy.Parse); err != nil {
			return nil, err
		}
	}
	var hosts []schedule.Host
	for i := range entries {
		e := &entries[i]
		inv, err := inventoryOf(ctx, e, hostsFile)
		if err != nil {
			return nil, err
		}
		for _, name := range e.Names() {
			hosts = append(hosts, schedule.Host{
				Name: name, Rack: e.Rack, Preference: e.Preference, Cordoned: e.Cordoned, Inventory: inv,
			})
		}
	}
	fleet, err := schedule.New(hosts, p, schedule.Weights{})
	if err != nil {
		return nil, wrongUse("%s: %w", hostsFile, err)
	}
	return fleet, nil
}

// inventoryOf returns the inventory of the hosts that an entry makes.
func inventoryOf(ctx context.Context, e *schedule.HostEntry, file string) (*inventory.Host, error) {
	if e.Inventory != "" {
		path := e.Inventory
		if !filepath.IsAbs(path) && file != "-" {
			path = filepath.Join(filepath.Dir(file), path)
		}
		inv, err := readFile(ctx, path, inventory.Parse)
		return &inv, err
	}
	t, err := topology.Synthetic(e.Machine)
	return &inventory.Host{Version: inventory.Version, Name: e.Name, Topology: t}, err
}

func printScheduled(w io.Writer, r *schedule.Result, explain bool) {
	rows := [][]string{{"VM", "HOST", "NODES", "REASON"}}
	for _, o := range r.Outcomes {
		if o.Decision == nil {
			rows = append(rows, []string{text.Visible(o.VM), "-", "-", text.Visible(o.Message)})
			continue
		}
		d := o.Decision
		rows = append(rows,
			[]string{text.Visible(o.VM), text.Visible(d.Host), text.Set(d.Placement.Nodes), reasonFor(d)})
	}
	columns(w, rows)
	if explain {
		for _, o := range r.Outcomes {
			if o.Decision != nil {
				fmt.Fprintf(w, "\n%s", text.VisibleLines(o.Decision.Text()))
			}
		}
	}
	s := &r.Summary
	printf(w, "\n%d placed, %d refused", s.Placed, s.Refused)
	if s.Refused > 0 {
		printf(w, " (the first after %s)", text.Count(s.BeforeRefusal, "VM", "VMs"))
	}
	printf(w, "; %s, %d empty\n", text.Count(s.Hosts, "host", "hosts"), s.EmptyHosts)
	printf(w, "free: %.0f vCPUs and %v; of these %.0f vCPUs and %v on nodes where no VM of these shapes fits\n",
		s.FreeVCPUs, s.FreeMemory, s.StrandedVCPUs, s.StrandedMemory)
}

// reasonFor says in a few words why a host was chosen.
func reasonFor(d *schedule.Decision) string {
	if len(d.Why.Next) == 0 {
		return "the only host with room"
	}
	var names []string
	for _, n := range d.Why.Next {
		if n.Refused == "" {
			names = append(names, n.Host)
		}
	}
	return fmt.Sprintf("best of %s; next: %s", text.Count(d.Why.Fitted, "host", "hosts"), strings.Join(names, ", "))
}
