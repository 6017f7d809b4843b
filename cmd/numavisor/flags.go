package main

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// checkFlags refuses flags that were given without a value: what such a flag
// names would be this host, or no limit, and the empty value is mostly one of a
// variable that nobody set. Only what a kernel is told may be nothing.
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
