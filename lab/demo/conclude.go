package demo

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/numavisor/numavisor/internal/text"
)

// truth is what 'numavisor list -o json' says about a VM, as far as the demo uses it.
type truth struct {
	Guest            string   `json:"guest"`
	MemoryOnIntended *float64 `json:"memory_on_intended"`
	VCPUsOnIntended  *float64 `json:"vcpus_on_intended"`
}

// figures are the measurements of a VM, a value for each round.
type figures struct {
	truth
	rates  []float64 // MB/s, as a program inside the VM measures them
	access []Access
}

// meanAccess joins the rounds; each counts by its accesses.
func (f *figures) meanAccess() Access {
	var a Access
	for _, r := range f.access {
		a.Count += r.Count
		a.Local += r.Local * float64(r.Count)
		a.Nanos += r.Nanos * float64(r.Count)
	}
	if a.Count > 0 {
		a.Local, a.Nanos = a.Local/float64(a.Count), a.Nanos/float64(a.Count)
	}
	return a
}

// mostLocal is the greatest local share of a round. The counter also sees the host's own work, which grows when the
// machine is busy and makes a round look less local, never more.
func (f *figures) mostLocal() (most float64) {
	for _, a := range f.access {
		most = max(most, a.Local)
	}
	return most
}

// Limits of a comparison of bandwidths.
const (
	mostBusy   = 0.15 // share of this machine's CPUs that others may use
	mostSpread = 1.25 // of the control VM's bandwidth, greatest over least
)

// Limits of a VM that is bound. A little memory is shared with other processes and stays where it is. The
// counter also sees the host's own work, some 6 % of all accesses on an idle machine.
const (
	leastOnIntended = 0.98
	leastLocal      = 0.8
)

// conclude prints before and after. The error names a VM that is not where it was bound to, or
// whose accesses did not become local.
func conclude(w io.Writer, before, after map[string]*figures, busy float64) error {
	fmt.Fprintln(w, "Memory accesses, counted by the lab; some are the host's own, more of them on a busy machine:")
	fmt.Fprintln(w)
	rows := [][]string{{"VM", "LOCAL BEFORE", "LOCAL AFTER", "MEAN ACCESS BEFORE", "AFTER"}}
	for _, name := range names() {
		b, a := before[name].meanAccess(), after[name].meanAccess()
		rows = append(rows, []string{label(name), text.Percent(b.Local), text.Percent(a.Local),
			fmt.Sprintf("%.0f ns", b.Nanos), fmt.Sprintf("%.0f ns", a.Nanos)})
	}
	table(w, rows)
	bandwidth(w, before, after, busy)
	for _, name := range names() {
		f := after[name]
		if f.MemoryOnIntended == nil || *f.MemoryOnIntended < leastOnIntended || f.VCPUsOnIntended == nil ||
			*f.VCPUsOnIntended < 1 {
			return fmt.Errorf("VM %s is not where it was bound to", name)
		}
		if local := f.mostLocal(); local < leastLocal {
			return fmt.Errorf("VM %s is bound, but at most %s of its accesses are local in a round", name,
				text.Percent(local))
		}
	}
	fmt.Fprintln(w, "\nEvery VM has all of its vCPUs and at least 98 % of its memory on the nodes it is bound to.")
	return nil
}

// bandwidth prints the measurements of the programs inside the VMs, or why
// these figures are not comparable.
func bandwidth(w io.Writer, before, after map[string]*figures, busy float64) {
	reference := slices.Concat(before[control].rates, after[control].rates)
	spread := slices.Max(reference) / slices.Min(reference)
	fmt.Fprintf(w, "\nBandwidth as a program inside each VM measures it, %d turns each, least to greatest:\n\n", rounds)
	rows := [][]string{{"VM", "BEFORE", "AFTER"}}
	for _, name := range names() {
		rows = append(rows, []string{label(name), span(before[name].rates), span(after[name].rates)})
	}
	table(w, rows)
	switch {
	case busy > mostBusy:
		fmt.Fprintf(w, "\nThis machine is busy: other programs use %.0f %% of it. Do not compare these bandwidths.\n",
			100*busy)
	case spread > mostSpread:
		fmt.Fprintf(w, "\nThe bandwidth of %s, which nothing changed, varies by %.0f %%: do not compare smaller "+
			"differences.\n", control, 100*(spread-1))
	}
}

// label marks the VM that the demo did not change.
func label(name string) string {
	if name == control {
		return name + " (created by Numavisor)"
	}
	return name
}

// span writes the least and the greatest of some rates.
func span(rates []float64) string {
	return fmt.Sprintf("%.0f to %.0f MB/s", slices.Min(rates), slices.Max(rates))
}

func table(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
