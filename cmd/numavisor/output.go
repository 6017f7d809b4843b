package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/text"
)

// emit prints a value in the format of the -o flag; table prints it for people.
func emit(c *cobra.Command, value any, table func(io.Writer)) error {
	format, err := c.Flags().GetString("output")
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	switch format {
	case "table":
		table(w)
		return nil
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(value)
	case "yaml":
		data, err := json.Marshal(value)
		if err == nil {
			data, err = yaml.JSONToYAML(escaped(data))
		}
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	return checkFormat(c)
}

func checkFormat(c *cobra.Command) error {
	format, err := c.Flags().GetString("output")
	if err != nil {
		return err
	}
	allowed := append([]string{"table", "json", "yaml"}, strings.Fields(c.Annotations[moreFormats])...)
	if !slices.Contains(allowed, format) {
		return wrongUse("-o %q: allowed are %s%s", format, strings.Join(allowed, ", "), didYouMean(format, allowed))
	}
	return nil
}

// moreFormats is the annotation of a command that names the values of -o that only it has.
const moreFormats = "output formats"

// askedFormat is the value of -o, at any position among arguments that may
// otherwise be wrong.
func askedFormat(args []string) string {
	f := pflag.NewFlagSet("format", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.ParseErrorsAllowlist.UnknownFlags = true
	f.BoolP("help", "h", false, "")
	format := f.StringP("output", "o", "table", "")
	_ = f.Parse(args) // the command has already reported the error
	return *format
}

// escaped writes hidden runes of a JSON document as JSON escapes: YAML allows
// no other form of them. In what json.Marshal writes they are only in strings.
func escaped(document []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(document) {
		if text.Hidden(r) && r <= 0xffff { // YAML allows the others as they are, and knows no surrogates
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// printf writes a text for people. It escapes arguments with hidden runes
// (text.Visible): a name with a line break must not look like a line of
// Numavisor's.
func printf(w io.Writer, format string, args ...any) {
	for i, a := range args {
		switch v := a.(type) {
		case string:
			args[i] = text.Visible(v)
		case error:
			args[i] = text.Visible(v.Error())
		case fmt.Stringer:
			args[i] = text.Visible(v.String())
		}
	}
	fmt.Fprintf(w, format, args...)
}

// columns prints rows aligned under a heading; the first row is the heading.
// Cells that a row lacks at its end count as empty: tabwriter aligns a column
// only over rows that all have it.
func columns(w io.Writer, rows [][]string) {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, max(len(row), len(rows[0])))
		for i := range row {
			cells[i] = text.Visible(row[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush()
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
}
