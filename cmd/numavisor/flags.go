package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// checkFlags refuses flags with an empty value. An empty value would mean this
// host, or no limit, and usually comes from an unset variable. Only values that
// are passed to a kernel may be empty.
func checkFlags(c *cobra.Command) error {
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if many, ok := f.Value.(pflag.SliceValue); ok {
			values = many.GetSlice()
		}
		if slices.Contains(values, "") && f.Name != "append" && err == nil {
			err = wrongUse("--%s \"\": is empty; give a value, or leave the flag out", f.Name)
		}
	})
	return err
}

// anyNumber of arguments is allowed.
const anyNumber = -1

// takes refuses fewer arguments than least and more than most. The error shows
// how the command is used.
func takes(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("an argument is missing: %s", c.UseLine())
		case most == 0 && len(args) > 0:
			return fmt.Errorf("%q: %s takes no arguments", args[0], c.CommandPath())
		case most != anyNumber && len(args) > most:
			return fmt.Errorf("%q is one argument too many: %s", args[most], c.UseLine())
		}
		return nil
	}
}

// exclusiveGroups is the annotation of a command that holds its groups of flags
// of which a command line may have only one, a group a line.
const exclusiveGroups = "numavisor_exclusive_groups"

// exclusive refuses more than one of the flags. Completion stops to offer the
// others when one is given.
func exclusive(c *cobra.Command, flags ...string) {
	c.MarkFlagsMutuallyExclusive(flags...)
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[exclusiveGroups] += strings.Join(flags, " ") + "\n"
}

// checkExclusive names two flags of the command line that exclude each other.
func checkExclusive(c *cobra.Command) error {
	for group := range strings.Lines(c.Annotations[exclusiveGroups]) {
		given := slices.DeleteFunc(strings.Fields(group), func(name string) bool { return !c.Flags().Changed(name) })
		if len(given) > 1 {
			return fmt.Errorf("--%s and --%s exclude each other", given[0], given[1])
		}
	}
	return nil
}

// onlyWith refuses flags that have an effect only together with another one.
func onlyWith(c *cobra.Command, other string, flags ...string) error {
	if c.Flags().Changed(other) {
		return nil
	}
	for _, f := range flags {
		if c.Flags().Changed(f) {
			return wrongUse("--%s has no effect without --%s; see '%s --help'", f, other, c.CommandPath())
		}
	}
	return nil
}

// span is a flag's duration, in which days count, too: "7d", "1d12h".
type span time.Duration

func (s *span) Set(text string) error {
	var days time.Duration
	rest := text
	if number, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(number, 10, 15)
		if err != nil {
			return fmt.Errorf("%q is no number of days; allowed are 90s, 5m, 36h, 7d, 1d12h", number)
		}
		days, rest = time.Duration(n)*24*time.Hour, cmp.Or(after, "0s")
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return errors.New("not a duration; allowed are 90s, 5m, 36h, 7d, 1d12h")
	}
	*s = span(days + d)
	return nil
}

func (s *span) String() string { return time.Duration(*s).String() }

func (*span) Type() string { return "duration" }

// spanFlag defines a flag for a duration of hours or days, 0 by default.
func spanFlag(f *pflag.FlagSet, d *time.Duration, name, usage string) { f.Var((*span)(d), name, usage) }

// timeLimit is a flag's duration that must be more than 0.
type timeLimit time.Duration

func (t *timeLimit) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("must be more than 0, for example 10m")
	}
	*t = timeLimit(d)
	return err
}

func (t *timeLimit) String() string { return time.Duration(*t).String() }

func (*timeLimit) Type() string { return "duration" }

// timeLimitFlag defines --timeout.
func timeLimitFlag(f *pflag.FlagSet, limit *time.Duration, usage string) {
	*limit = 10 * time.Minute
	f.Var((*timeLimit)(limit), "timeout", usage)
}

// rootFolders names, for a command that changes the host or reads its records,
// the flags of the folders that it opens. By default only root may open them.
func rootFolders(command string) []string {
	return map[string][]string{
		"create": {"state", "records"}, "delete": {"state", "records"}, "apply": {"state", "records"},
		"undo": {"state", "records"}, "migrate": {"state", "records"},
		"daemon": {"state", "records"}, "up": {"state", "records"},
		"doctor": {"state", "records"},
		"bind":   {"state"}, "run": {"state"}, // of own processes, without the journal
		"alarms": {"records"}, "history": {"records"},
	}[command]
}

// needsRoot refuses a command that only root can carry out, before the command
// changes anything. A user who names other folders may have the other rights.
func needsRoot(c *cobra.Command, euid int) error {
	name := c.Name()
	if euid == 0 || c.Parent() != c.Root() || isRemote(c) {
		return nil
	}
	if name == "doctor" {
		if !c.Flags().Changed("fix") {
			return nil
		}
		name = "doctor --fix"
	}
	for _, folder := range rootFolders(c.Name()) {
		if f := c.Flags().Lookup(folder); !f.Changed {
			return fmt.Errorf("%s needs root: run 'sudo numavisor %[1]s ...'; only root may open %s (--%s)", name,
				f.DefValue, folder)
		}
	}
	return nil
}
