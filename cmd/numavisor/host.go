package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// hostFlags hold how to reach this host, and what the operator set aside.
type hostFlags struct {
	uri, state, records, measured, housekeeping, policy, pace string
	socket                                                    string // of the daemon; empty: the default
	timeout                                                   time.Duration
	withoutLibvirt                                            bool
	from                                                      hostSource
	// isGiven reports whether a flag is on the command line; nil: no flag is.
	isGiven func(flag string) bool
}

// defaultPolicy is the policy file of a host: the daemon and all commands read
// it unless --policy names another one. A host without this file has the
// default policy.
const defaultPolicy = "/etc/numavisor/policy.yaml"

// flags defines the flags that select the host, and the further flags that this
// command uses.
func (f *hostFlags) flags(c *cobra.Command, more ...func(*hostFlags, *pflag.FlagSet)) {
	p := c.Flags()
	p.StringVar(&f.uri, "connect", "", "libvirt URI of this host (default: LIBVIRT_DEFAULT_URI, else qemu:///system)")
	p.StringVar(&f.state, "state", claim.DefaultFolder, "folder for reservations of commands in progress")
	timeLimitFlag(p, &f.timeout, "give up after this time")
	for _, define := range more {
		define(f, p)
	}
	f.isGiven = p.Changed
}

// withTopology is for commands that decide, or show what a decision needs.
func withTopology(f *hostFlags, p *pflag.FlagSet) {
	p.StringVar(&f.measured, "measured", "",
		"file with a measured latency and bandwidth matrix; it takes precedence over SLIT")
	p.StringVar(&f.housekeeping, "housekeeping", "", "CPUs that VMs must not get, for example 0,64")
}

// withoutLibvirt is for commands that only observe the host and decide: they
// also work on a host whose libvirt daemon does not run.
func withoutLibvirt(f *hostFlags, p *pflag.FlagSet) {
	p.BoolVar(&f.withoutLibvirt, "without-libvirt", false,
		"do not ask libvirt: CPUs and memory of its VMs count as free")
}

// withPolicy is for commands that decide.
func withPolicy(f *hostFlags, p *pflag.FlagSet) {
	p.StringVar(&f.policy, "policy", defaultPolicy, "file with the operator's policy (YAML or JSON)")
}

// withPace is for commands that copy memory.
func withPace(f *hostFlags, p *pflag.FlagSet) {
	p.StringVar(&f.pace, "pace", "",
		"copy at most this much memory a second, more than 0, for example 500M (default: full speed)")
}

// withRecords is for commands that change the host: the journal records their
// effects.
func withRecords(f *hostFlags, p *pflag.FlagSet) { recordsFlag(p, &f.records) }

// open joins the drivers into one host. done closes its connections and
// releases the command's deadline.
func (f *hostFlags) open(c *cobra.Command) (h *local.Host, done func(), err error) {
	o, err := f.options(c.Context())
	if err != nil {
		return nil, nil, err
	}
	h, err = local.Open(o)
	var bad *local.URIError
	switch {
	case errors.As(err, &bad) && f.uri == "":
		return nil, nil, wrongUse("LIBVIRT_DEFAULT_URI %q %w", bad.URI, bad.Err)
	case errors.As(err, &bad):
		return nil, nil, wrongUse("--connect %q %w", bad.URI, bad.Err)
	case err != nil:
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	c.SetContext(ctx)
	recordEffects(c, h)
	h.Loads = loadsOf(cmp.Or(f.socket, hostapi.DefaultSocket), c.ErrOrStderr())
	return h, func() { h.Close(); cancel() }, nil
}

// options turns the flags into values; files that they name are read.
func (f *hostFlags) options(ctx context.Context) (o local.Options, err error) {
	o = local.Options{URI: f.uri, WithoutLibvirt: f.withoutLibvirt, Claims: f.state, Records: f.records}
	if o.Housekeeping, err = topology.ParseSet[topology.CPUID](f.housekeeping); err != nil {
		return o, wrongUse("--housekeeping: %w", err)
	}
	if o.Pace, err = f.copyPace(); err != nil {
		return o, err
	}
	if o.Policy, err = f.readPolicy(ctx); err == nil && f.measured != "" {
		o.Measured, err = readFile(ctx, f.measured, topology.ParseMeasured)
	}
	return o, err
}

// copyPace returns the limit for copying memory, in bytes a second; 0: full
// speed.
func (f *hostFlags) copyPace() (topology.Bytes, error) {
	if f.pace == "" {
		return 0, nil
	}
	pace, err := topology.ParseSize(f.pace)
	switch {
	case err != nil:
		return 0, wrongUse("--pace: %w", err)
	case pace == 0:
		return 0, wrongUse("--pace %s: copies nothing; give more than 0, or leave it out for full speed", f.pace)
	}
	return pace, nil
}

// readPolicy returns the operator's policy. A file that --policy names must
// exist; without the flag, a host without a policy file has the default policy.
// So has the description of another host: this host's file does not apply to it.
func (f *hostFlags) readPolicy(ctx context.Context) (policy.Policy, error) {
	given := f.isGiven != nil && f.isGiven("policy")
	if f.policy == "" || f.from.elsewhere() && !given { // "": the command decides nothing
		return policy.Policy{}, nil
	}
	p, err := readFile(ctx, f.policy, policy.Parse)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return policy.Policy{}, nil
	}
	return p, err
}
