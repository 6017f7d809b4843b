package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/topology"
)

func runCommand() *cobra.Command {
	var on hostFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a command bound to the best nodes for it",
		Long: `Chooses nodes for a command that needs --vcpus CPUs and --memory, as for a VM,
reserves the CPUs and memory while the command runs, and binds it by CPU affinity, a
memory policy and a cgroup. Exits with the status of the command.`,
		Example: `  numavisor run --vcpus 4 --memory 8G -- ./server
  numavisor run --nodes 1 --memory-binding strict --vcpus 2 --memory 1G -- qemu-system-x86_64 ...`,
		Args: takes(1, anyNumber),
	}
	spec := guest.BindFlags(c.Flags(), append([]string{"vcpus", "memory", "smt"}, rebindFlags()...)...)
	on.flags(c, withTopology, withPolicy, withRecords)
	c.RunE = func(c *cobra.Command, args []string) error {
		asked, err := spec.Apply(guest.Spec{Topology: guest.TopologySpec{Mode: guest.TopologyOff}})
		if err != nil {
			return usageError{err}
		}
		asked.Name = fmt.Sprintf("run-%d", os.Getpid())
		if asked.VCPUs == 0 {
			asked.VCPUs = 1
		}
		if asked.Memory == 0 {
			asked.Memory = topology.MiB
		}
		if asked, err = asked.Normalize(); err != nil {
			return usageError{err}
		}
		if _, err := exec.LookPath(args[0]); err != nil { // before its room is claimed
			return fmt.Errorf("running %s: %w; give the name of a program in PATH, or a path", args[0], err)
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		if err := notOnXen(h.Xen, "run"); err != nil {
			return err
		}
		closeInterrupted(c, h)
		return launch(c, h, asked, args)
	}
	return c
}

func launch(c *cobra.Command, h *local.Host, asked guest.Spec, args []string) error {
	n, err := h.PlaceNew(c.Context(), asked, args[0])
	noteUncounted(c, "could not see", n.Gaps)
	if err != nil {
		return err
	}
	p := n.Placement
	l := linux.Launch{Args: args, Env: os.Environ(), CPUs: p.Emulator, Mode: p.MemoryMode, Nodes: p.Nodes}
	if p.MemoryMode != guest.MemoryNone {
		group, err := ownGroup(c, p)
		if err != nil {
			printf(c.ErrOrStderr(),
				"numavisor: note: no cgroup limit (%v): only CPU affinity and memory policy bind the command\n", err)
		} else {
			l.Group = &group
		}
	}
	if err := n.Starting(); err != nil {
		return fmt.Errorf("starting %s: %w", args[0], err)
	}
	return n.Failed(fmt.Errorf("starting %s: %w", args[0], l.Exec()))
}

func ownGroup(c *cobra.Command, p guest.Placement) (linux.Cgroup, error) {
	mount, err := linux.Root("/").CgroupMount()
	if err != nil {
		return linux.Cgroup{}, err
	}
	if err := linux.RemoveEmptyOwn(mount); err != nil {
		return linux.Cgroup{}, err
	}
	return linux.CreateOwn(c.Context(), mount, p.Guest, p.Emulator, p.Nodes)
}
