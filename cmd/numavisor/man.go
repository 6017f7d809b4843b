package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manSections follow the options of each manual page.
const manSections = `.SH EXIT STATUS
.TP
\fB0\fP
done
.TP
\fB1\fP
failed; the message names what was changed, if anything
.TP
\fB2\fP
usage error
.TP
\fB3\fP
done in part; the output says what was not done, and why

.SH FILES
.TP
\fI/etc/numavisor/policy.yaml\fP
policy of the operator, for the daemon and all commands
.TP
\fI/var/lib/numavisor\fP
journal and alarms
.TP
\fI/run/numavisor\fP
reservations of commands in progress, and the daemon's socket

`

// manCommand writes the manual pages, for packages: one for each command.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write the manual pages",
		Long:    "Writes a manual page for each command into a folder, dated by this program's commit.",
		Example: "  numavisor man /usr/local/share/man/man1",
		Hidden:  true,
		Args:    takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			program := thisBuild()
			date, err := time.Parse(time.RFC3339, cmp.Or(program.Date, "1970-01-01T00:00:00Z"))
			if err != nil {
				return fmt.Errorf("date of this program: %w", err)
			}
			header := doc.GenManHeader{Section: "1", Source: "Numavisor " + program.Version, Manual: "Numavisor",
				Date: &date}
			c.Root().DisableAutoGenTag = true
			for _, of := range allCommands(c.Root()) {
				if !of.IsAvailableCommand() && of.HasParent() {
					continue
				}
				if err := writePage(of, header, args[0]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func writePage(c *cobra.Command, header doc.GenManHeader, folder string) error {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	header.Title = strings.ToUpper(name)
	c.DisableAutoGenTag = true
	var page bytes.Buffer
	if err := doc.GenMan(c, &header, &page); err != nil {
		return fmt.Errorf("manual page of %s: %w", c.CommandPath(), err)
	}
	text, last, ok := strings.Cut(page.String(), ".SH SEE ALSO")
	if ok {
		last = ".SH SEE ALSO" + last
	}
	text = tagOptions(strings.Replace(text, header.Date.Format("Jan 2006"), header.Date.Format(time.DateOnly), 1))
	return os.WriteFile(filepath.Join(folder, name+".1"), []byte(text+manSections+last), 0o644)
}

// manOption is an option as cobra writes it: name, default and, after a tab,
// its meaning.
var manOption = regexp.MustCompile(`(?m)(?:^\.PP\n)?^(\\fB-.*\\fP)(=.*|\[=.*\])?\n\t(.*)$`)

// tagOptions makes each option a tagged paragraph. Cobra writes a tab between
// an option and its meaning, so that all but the first line of the meaning
// stand at the margin. Lines are not justified: a long value would stretch the
// words before it. A default that is empty or false is left out.
func tagOptions(page string) string {
	return ".ad l\n" + manOption.ReplaceAllStringFunc(page, func(option string) string {
		part := manOption.FindStringSubmatch(option)
		value := part[2]
		switch value {
		case "[=false]":
			value = ""
		case `=""`:
			value = "="
		}
		if strings.HasPrefix(part[3], ".") || strings.HasPrefix(part[3], "'") { // not a request of troff
			part[3] = `\&` + part[3]
		}
		return ".TP\n" + part[1] + value + "\n" + part[3]
	})
}
