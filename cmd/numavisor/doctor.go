package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func doctorCommand() *cobra.Command {
	var on hostFlags
	var fix, dryRun bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find settings that hurt memory locality, with evidence and a fix",
		Long: `Looks for misconfigurations of the host and its VMs. Each finding has the figures
that show it, its effect, and the command that corrects it. --fix applies the safe
fixes: those that lose nothing and can be undone, on the host and on VMs that
Numavisor placed. What mirrored VMs hand over is checked against the policy.
--inventory checks a saved inventory. --root, --capabilities,
--hwloc and --xl-info check the host that a file describes, without VMs.

Exit status 3 means that a fix failed, or that Numavisor could not list all VMs of
this host.`,
		Example: `  numavisor doctor
  numavisor doctor --fix
  numavisor doctor --root captured/web1 -o json`,
		Args: takes(0, 0),
	}
	on.flags(c, withTopology, withPolicy, withPace, withRecords, withSources)
	c.Flags().BoolVar(&fix, "fix", false, "apply the safe fixes")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --fix: show which fixes would be applied, and apply none")
	onlyHere(c, "fix")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := onlyWith(c, "fix", "pace", "records", "dry-run"); err != nil {
			return err
		}
		var inv inventory.Host
		var h *local.Host
		p, err := on.readPolicy(c.Context())
		if err != nil {
			return err
		}
		if on.from.elsewhere() {
			inv, err = on.described(c.Context())
		} else {
			var done func()
			if h, done, err = on.open(c); err != nil {
				return err
			}
			defer done()
			inv, err = h.Observe(c.Context())
		}
		if err != nil {
			return err
		}
		return diagnoseHost(c, h, &inv, p, fix, dryRun)
	}
	return c
}

// diagnoseHost prints the findings. With fix, it applies the safe fixes, or shows them if dryRun is set.
func diagnoseHost(
	c *cobra.Command, h *local.Host, inv *inventory.Host, p policy.Policy, fix, dryRun bool,
) (err error) {
	report := diagnosis{Findings: append([]diagnose.Finding{}, diagnose.RunUnder(inv, p)...), Gaps: inv.Gaps}
	switch {
	case fix && dryRun:
		report.WouldFix = safeFixes(report.Findings)
	case fix:
		closeInterrupted(c, h)
		report.Fixed, err = fixAll(c.Context(), h, report.Findings)
	}
	return errors.Join(emit(c, report, func(w io.Writer) { printDiagnosis(w, &inv.Topology, report) }), err,
		unseen(inv))
}

// diagnosis is what doctor prints.
type diagnosis struct {
	Findings []diagnose.Finding `json:"findings"`
	Fixed    []fixed            `json:"fixed,omitempty"`
	WouldFix []diagnose.Finding `json:"would_fix,omitempty"` // with --dry-run
	Gaps     []inventory.Gap    `json:"gaps,omitempty"`
}

// fixed is the result of one safe fix.
type fixed struct {
	Rule   string `json:"rule"`
	Object string `json:"object"`
	Done   bool   `json:"done"`
	Detail string `json:"detail"`
}

// safeFixes returns the findings that --fix corrects. Several findings that one
// bind of a VM corrects count once.
func safeFixes(findings []diagnose.Finding) []diagnose.Finding {
	var safe []diagnose.Finding
	bound := map[string]bool{}
	for _, f := range findings {
		if !f.Safe || f.Action == nil || (f.Action.Kind == plan.BindGuest && bound[f.Action.Guest]) {
			continue
		}
		if f.Action.Kind == plan.BindGuest {
			bound[f.Action.Guest] = true
		}
		safe = append(safe, f)
	}
	return safe
}

// fixAll applies the safe fixes. If one fails, fixAll still applies the others.
func fixAll(ctx context.Context, h *local.Host, findings []diagnose.Finding) ([]fixed, error) {
	var all []fixed
	var failed []string
	for _, f := range safeFixes(findings) {
		remedy := *f.Action
		remedy.Why = "doctor: " + f.Rule
		did, err := h.Fix(ctx, operate.FixRequest{Remedy: remedy})
		detail := did.What
		if err != nil {
			detail = err.Error()
			failed = append(failed, f.Rule+" of "+f.Object)
		}
		all = append(all, fixed{f.Rule, f.Object, err == nil, detail})
	}
	if len(failed) > 0 {
		return all, partialError{fmt.Errorf("not fixed: %s", strings.Join(failed, ", "))}
	}
	return all, nil
}

func printDiagnosis(w io.Writer, t *topology.Topology, d diagnosis) {
	hidden := slices.DeleteFunc(slices.Clone(d.Gaps), func(g inventory.Gap) bool { return !g.HidesGuests() })
	for _, g := range hidden {
		printf(w, "INCOMPLETE: %s were not checked: %s\n", g.What, text.FirstClause(g.Why))
	}
	for _, f := range d.Findings {
		printf(w, "%s: %s: %s\n", strings.ToUpper(string(f.Severity)), f.Object, f.Rule)
		for _, e := range f.Evidence {
			printf(w, "  seen:   %s\n", e)
		}
		printf(w, "  effect: %s\n  fix:    %s\n", f.Effect, f.Fix)
		if f.Command != "" {
			printf(w, "          %s\n", f.Command)
		}
		if f.Safe {
			fmt.Fprintln(w, "          (safe: --fix does it)")
		}
	}
	if len(d.Findings) == 0 {
		where := "found"
		if len(hidden) > 0 {
			where = "in the rest"
		}
		printf(w, "No problems %s (%s, %s).\n", where, text.Count(len(t.Nodes), "node", "nodes"),
			text.Count(len(t.CPUs), "CPU", "CPUs"))
	}
	for _, f := range d.WouldFix {
		printf(w, "would fix: %s of %s: %s\n", f.Rule, f.Object, f.Fix)
	}
	for _, f := range d.Fixed {
		state := "fixed"
		if !f.Done {
			state = "NOT fixed"
		}
		printf(w, "%s: %s of %s: %s\n", state, f.Rule, f.Object, f.Detail)
	}
	printGaps(w, d.Gaps)
}
