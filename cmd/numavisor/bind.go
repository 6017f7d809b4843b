package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
)

const bindLong = `Moves a running VM to a placement and binds it there, also a VM that Numavisor did
not create: pins vCPUs, emulator and I/O threads, copies the memory, changes memory
policies and limits, and reads the result back from the kernel.

A VM with a recorded placement returns to it, which repairs drift. Any other VM gets
the best placement. --recompute, and flags that change what the VM needs, where it
may go or how it is bound, compute a new placement. --dry-run also names the
balancer's choice where it differs: bind chooses the best nodes for this VM, the
balancer weighs the gain against the price of the move.

On Xen, memory of a running VM does not move. --recreate lets bind make the VM again on
this host by a live migration to itself, if the policy allows it (movers.recreate:
operator). The VM pauses while the last pages are copied, and its memory is needed twice
until then. Its configuration is computed from what Xen reports; for a VM with disks or
network cards, --xl names the file with which it was created.

Exit status 3 means done in part: the output says what was not done, and why.`

func bindCommand() *cobra.Command {
	var on hostFlags
	var pid int
	var dryRun, recompute, recreate bool
	var xlFile string
	var in remote
	c := &cobra.Command{
		Use:   "bind VM | --pid PID",
		Short: "Bind a running VM or process to nodes, its CPUs and memory together",
		Long:  bindLong,
		Example: `  numavisor bind web1
  numavisor bind web1 --nodes 2 --dry-run
  numavisor bind --pid 4711 --nodes 1`,
		Args: takes(0, 1),
	}
	spec := guest.BindFlags(c.Flags(), append([]string{"vcpus", "memory", "smt", "emulator", "io-thread-policy"},
		rebindFlags()...)...)
	on.flags(c, withTopology, withPolicy, withPace, withRecords)
	c.Flags().IntVar(&pid, "pid", 0, "bind this process instead of a VM")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan and change nothing")
	c.Flags().BoolVar(&recreate, "recreate", false,
		"Xen: make the VM again on this host if its memory must move; it pauses for that")
	c.Flags().StringVar(&xlFile, "xl", "", "with --recreate: the VM's xl configuration (default: computed)")
	c.Flags().BoolVar(&recompute, "recompute", false, "compute a new placement even if one is recorded with the VM")
	in.flag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := oneTarget(c, pid, args); err != nil {
			return err
		}
		definition, err := recreation(c, recreate, xlFile)
		if err != nil {
			return err
		}
		client, err := in.client(c, "dry-run", "timeout", "recompute")
		if err != nil {
			return err
		}
		if client != nil {
			return bindRemote(c, client, args[0], dryRun, on.timeout)
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		if !dryRun {
			closeInterrupted(c, h)
		}
		on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
		h.Progress = progressOn(c.ErrOrStderr()).binding()
		if pid != 0 {
			return bindProcess(c, h, operate.ProcessRequest{PID: pid, Change: changed(spec), DryRun: dryRun})
		}
		b, err := bindVM(c, h, operate.BindRequest{Name: args[0], Recompute: recompute, DryRun: dryRun,
			Recreate: recreate, Definition: definition, Announce: announce(c)}, spec)
		return report(c, bindTarget(pid, args), b, err)
	}
	return c
}

// announce says, before a VM is made again, what that takes.
func announce(c *cobra.Command) func(plan.Steps) {
	return func(p plan.Steps) {
		for _, s := range p.Steps {
			if s.Price != nil {
				fmt.Fprintf(c.ErrOrStderr(), "numavisor: note: making %s again %s\n", text.Visible(p.Guest), s.Price)
			}
		}
	}
}

// recreation checks the flags with which a VM is made again, and reads its configuration if one is given.
func recreation(c *cobra.Command, recreate bool, xlFile string) (definition []byte, err error) {
	switch {
	case recreate && c.Flags().Changed("pid"):
		return nil, wrongUse("--recreate: a process is not made again; name a VM")
	case xlFile == "":
		return nil, nil
	case !recreate:
		return nil, wrongUse("--xl %s: only --recreate uses a configuration", xlFile)
	}
	return xlDefinition(c, xlFile)
}

// oneTarget refuses arguments that name no target, or two.
func oneTarget(c *cobra.Command, pid int, args []string) error {
	if c.Flags().Changed("pid") == (len(args) == 1) {
		return wrongUse("name one VM, or a process with --pid; see 'numavisor bind --help'")
	}
	if c.Flags().Changed("pid") && pid <= 0 {
		return wrongUse("--pid %d: must be the number of a process, 1 or more", pid)
	}
	return onlyWith(c, "pid", "vcpus", "memory")
}

func bindProcess(c *cobra.Command, h *local.Host, r operate.ProcessRequest) error {
	if err := notOnXen(h.Xen, "bind --pid"); err != nil {
		return err
	}
	b, err := h.BindProcess(c.Context(), r)
	return report(c, bindTarget(r.PID, nil), b, err)
}

// bindVM binds a VM, with the spec that flags change.
func bindVM(
	c *cobra.Command, h *local.Host, r operate.BindRequest, spec *guest.FlagSpec,
) (operate.Bound, error) {
	if spec.Changed() {
		r.Change = changed(spec)
	}
	return h.Bind(c.Context(), r)
}

// rebindFlags are the flags of a spec that affect a running VM or process.
func rebindFlags() []string {
	return []string{"cpu-binding", "memory-binding", "nodes", "cpus", "max-nodes", "max-distance", "max-class",
		"device"}
}

// changed applies flags to a spec and checks the result. A running guest may
// have a spec that no new guest could ask for (cells without a policy): changed
// then reports only errors that the flags cause.
func changed(flags *guest.FlagSpec) func(guest.Spec) (guest.Spec, error) {
	return func(s guest.Spec) (guest.Spec, error) {
		_, already := s.Normalize()
		s, err := flags.Apply(s)
		if err != nil {
			return s, usageError{err}
		}
		if normal, err := s.Normalize(); err == nil {
			return normal, nil
		} else if already == nil {
			return s, usageError{err}
		}
		return s, nil
	}
}

// target describes in words what the command binds, and how the operator
// continues with it.
type target struct{ name, goOn string }

func bindTarget(pid int, args []string) target {
	if pid != 0 {
		return target{fmt.Sprintf("process %d", pid),
			fmt.Sprintf("it runs on; run 'numavisor bind --pid %d' again, with the same flags, to finish", pid)}
	}
	return target{args[0], fmt.Sprintf("the VM runs on; run 'numavisor bind %s' again to finish", args[0])}
}

// report prints the plan and its effects, also after an error.
func report(c *cobra.Command, of target, b operate.Bound, err error) error {
	noteUncounted(c, "could not see", b.Gaps)
	if b.Plan.Guest != "" {
		if printed := emit(c, b, func(w io.Writer) { printBound(w, b) }); printed != nil {
			return printed
		}
	}
	if err != nil {
		if !errors.Is(err, apply.ErrGone) && len(b.Outcomes) > 0 && b.Outcomes[0].Status != apply.Failed &&
			b.Outcomes[0].Status != apply.Skipped {
			return partialError{fmt.Errorf("binding %s stopped: %w; %s", of.name, err, of.goOn)}
		}
		return err
	}
	if len(b.Outcomes) > 0 && !b.Complete() {
		return partialError{fmt.Errorf("binding %s was done in part: %s", of.name, strings.Join(b.Shortfalls(), "; "))}
	}
	return nil
}

func printBound(w io.Writer, b operate.Bound) {
	if b.Why != nil {
		fmt.Fprintln(w, text.VisibleLines(strings.TrimRight(b.Why.Text(), "\n")))
	}
	if len(b.Outcomes) == 0 {
		if len(b.Plan.Steps) == 0 {
			printf(w, "%s: is as intended, on nodes %s; nothing to do\n", b.Plan.Guest, b.Plan.Placement.Nodes)
		} else {
			fmt.Fprint(w, text.VisibleLines(b.Plan.Text()))
		}
	}
	if b.Balancing != nil {
		printBalancing(w, b.Plan.Guest, b.Balancing)
	}
	for _, o := range b.Outcomes {
		line := fmt.Sprintf("  %-8s %s", o.Status, o.Step)
		if o.Moved != nil {
			line += fmt.Sprintf(": %v on the target after %.1f s", o.Arrived(), o.Took.Seconds())
		}
		if o.Detail != "" {
			line += ": " + o.Detail
		}
		printf(w, "%s\n", line)
	}
	for _, r := range b.Plan.Cannot {
		printf(w, "  cannot   %s: %s\n", r.What, r.Why)
	}
	if b.Truth != nil {
		printTruth(w, b.Before, b.Truth)
	}
}

// printBalancing says what the balancer would do instead of this bind.
func printBalancing(w io.Writer, name string, o *operate.Balancing) {
	if o.Move == nil {
		printf(w, "The balancer would not move %s: %s\n", name, o.Why)
		return
	}
	compared := ""
	if o.BindCost != 0 {
		compared = fmt.Sprintf("; cost %.4g, that of this bind %.4g", o.Cost, o.BindCost)
	}
	printf(w, "The balancer would choose nodes %s (%s, %s%s): %s\n", o.Nodes, o.Move.Kind, o.Move.Cost, compared, o.Why)
	printf(w, "  to choose the same: numavisor bind %s --nodes %s\n", name, o.Nodes)
}

func printTruth(w io.Writer, before, after *operate.Truth) {
	if before != nil {
		printf(w, "before: %s\n", truthLine(before))
	}
	printf(w, "now:    %s\n", truthLine(after))
	printf(w, "        %s\n", after.Verdict())
}

func truthLine(t *operate.Truth) string {
	if t.MemorySource == "" {
		return "memory not seen"
	}
	var parts []string
	for _, n := range t.MemoryByNode.Nodes() {
		parts = append(parts, fmt.Sprintf("node %d: %v", n, t.MemoryByNode[n]))
	}
	return fmt.Sprintf("memory %s (%s); local share %s", strings.Join(parts, ", "), t.MemorySource,
		shareText(t.LocalShare))
}
