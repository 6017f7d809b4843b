package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/xenbench"
)

// benchXen measures what placement is worth on a Xen host.
func (b *bench) benchXen(c *cobra.Command) error {
	f := c.Flags()
	works := []string{"hypervisor", "guests", "rounds", "seconds", "output"}
	if other := changedOtherThan(c, works...); other != "" {
		return wrongUse("--%s has no effect with --hypervisor xen; allowed are --guests, --rounds and --seconds", other)
	}
	o := xenbench.Options{Guests: []int{1, 2, 4, 8}, Rounds: 1, Seconds: 6, Build: thisBuild().Version,
		Progress: progressLines(c.ErrOrStderr())}
	if f.Changed("guests") {
		o.Guests = []int{b.dimensions.Guests}
	}
	if f.Changed("rounds") {
		o.Rounds = b.rounds
	}
	if f.Changed("seconds") {
		o.Seconds = b.seconds
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	r, err := xenbench.Measure(c.Context(), o)
	if err != nil && len(r.Runs) == 0 {
		return fmt.Errorf("benchmark on Xen: %w", err)
	}
	report := struct {
		xenbench.Results
		Figures  []xenbench.Figure  `json:"figures"`
		Verdicts []xenbench.Verdict `json:"verdicts"`
	}{r, r.Figures(), r.Verdicts()}
	if printed := emit(c, report, func(w io.Writer) { printBenchXen(w, &r) }); printed != nil || err != nil {
		return errors.Join(printed, err)
	}
	var missed []string
	for _, v := range r.Verdicts() {
		if !v.Met {
			missed = append(missed, fmt.Sprintf("%d VMs: %s (%s)", v.Guests, v.Goal, v.Measured))
		}
	}
	if len(missed) > 0 {
		return errors.New("not met: " + strings.Join(missed, "; "))
	}
	return nil
}

func printBenchXen(w io.Writer, r *xenbench.Results) {
	fmt.Fprintf(w, "Work in millions of cache lines a second, of all VMs together; other programs used %.0f %% of "+
		"this machine's CPU time\n\n", 100*r.Others)
	columns(w, r.Table())
	fmt.Fprintln(w)
	rows := [][]string{{"PLACED BY", "ABOUT"}}
	for _, way := range xenbench.Ways() {
		rows = append(rows, []string{way.Name, way.About})
	}
	columns(w, rows)
	fmt.Fprintf(w, "\nAll local against no placement (published for SPECjbb2005: %s):", xenbench.Published)
	worth := r.Worth()
	for _, n := range slices.Sorted(maps.Keys(worth)) {
		fmt.Fprintf(w, " %d VMs %+.0f %%;", n, 100*worth[n])
	}
	fmt.Fprint(w, "\n\nGoals\n\n")
	rows = nil
	for _, v := range r.Verdicts() {
		state := "FAIL"
		if v.Met {
			state = "PASS"
		}
		rows = append(rows, []string{state, fmt.Sprintf("%d VMs", v.Guests), v.Goal, v.Measured})
	}
	if len(rows) > 0 {
		columns(w, rows)
	}
}

// onXen reports whether the benchmark is that of Xen.
func (b *bench) onXen() (bool, error) {
	switch lab.Hypervisor(b.hypervisor) {
	case lab.Xen:
		return true, nil
	case lab.KVM:
		return false, nil
	}
	return false, wrongUse("--hypervisor %q: allowed are kvm and xen", b.hypervisor)
}
