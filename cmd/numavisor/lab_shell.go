package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/lab"
)

func labShellCommand() *cobra.Command {
	var l labFlags
	c := &cobra.Command{
		Use:   "shell",
		Short: "Boot a lab and give a prompt in it",
		Long: `Boots a lab and runs in it, as root, the lines that you type, until 'exit' or the
end of input. A new bash runs each line: the next line starts in the same folder, but
without the variables of the line before. Full-screen programs do not work, because
the lab has no terminal.`,
		Example: `  numavisor lab shell --guests 3
  echo 'numavisor list' | numavisor lab shell --guests 1`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			ctx, cancel := context.WithTimeout(c.Context(), l.timeout)
			defer cancel()
			h, err := l.boot(ctx, c)
			if err != nil {
				return err
			}
			defer func() { err = cmp.Or(err, h.Close()) }()
			return prompt(ctx, c, h)
		},
	}
	l.flags(c)
	return c
}

// shellLine runs one line in the folder in which the line before ended.
const shellLine = `cd "$(cat /run/shell.folder 2>/dev/null || echo /root)" || cd /
eval "$1"; status=$?; pwd > /run/shell.folder; exit $status`

// prompt reads lines and runs them in the lab until 'exit', the end of input, or the end of ctx.
func prompt(ctx context.Context, c *cobra.Command, h *lab.Host) error {
	lines := make(chan string)
	go func() { // ends with the input, at the latest with the program: a read of a terminal cannot be interrupted
		defer close(lines)
		for in := bufio.NewScanner(c.InOrStdin()); in.Scan(); {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		fmt.Fprint(c.ErrOrStderr(), "lab# ")
		select {
		case <-ctx.Done():
			return fmt.Errorf("the lab's shell ends: %w", ctx.Err())
		case line, more := <-lines:
			switch line = strings.TrimSpace(line); {
			case !more || line == "exit":
				return nil
			case line == "":
				continue
			}
			_, err := h.Run(ctx, []string{"bash", "-c", shellLine, "shell", line}, c.OutOrStdout(), c.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("running %q in the lab: %w", line, err)
			}
		}
	}
}
