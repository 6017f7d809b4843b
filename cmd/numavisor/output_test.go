package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

const hostile = "evil\nROW\tCOLUMN\u009b31m\u202e\U000e0041"

// A name is data from outside: it forges no rows, columns or commands of the terminal.
func TestTables_EscapeNames(t *testing.T) {
	var out bytes.Buffer
	columns(&out, [][]string{{"GUEST", "STATE"}, {hostile, "running"}})
	printf(&out, "not seen: %s: %v\n", hostile, errors.New(hostile))
	printError(&out, "table", errors.New("guest "+hostile))
	if lines := strings.Count(out.String(), "\n"); lines != 4 {
		t.Errorf("%d lines; wanted 4:\n%q", lines, out.String())
	}
	if strings.ContainsAny(out.String(), "\t\u009b\u202e\U000e0041") ||
		!strings.Contains(out.String(), `evil\nROW\tCOLUMN\u009b31m\u202e\U000e0041`) {
		t.Errorf("raw: %q", out.String())
	}
}

func TestYAML_HoldsAnyName(t *testing.T) {
	var out bytes.Buffer
	c := &cobra.Command{}
	c.Flags().StringP("output", "o", "yaml", "")
	c.SetOut(&out)
	if err := emit(c, map[string]string{"name": hostile}, nil); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := yaml.Unmarshal(out.Bytes(), &back); err != nil || back["name"] != hostile {
		t.Errorf("%q, %v; wanted %q", back["name"], err, hostile)
	}
}
