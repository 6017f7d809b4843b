// Package transcripttest plays the conversations with a decision that a
// package's testdata/transcripts holds: each command changes a host or asks for
// a decision, and the text below it is the answer. The commands that every
// package has:
//
//	host      makes a host, one line of topology.Synthetic; the guests and the
//	          policy before it are gone
//	policy    YAML
//
// To accept new answers, run the package's test with -run Transcripts -rewrite.
package transcripttest

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// World is what a conversation is about.
type World struct {
	Host   inventory.Host
	Policy policy.Policy
}

// A Command carries out one command and returns the answer. An error is an
// answer too.
type Command func(t *testing.T, d *datadriven.TestData) (string, error)

// Play plays each conversation in testdata/transcripts. start is called for each
// new host, and returns the package's own commands.
func Play(t *testing.T, start func(*World) map[string]Command) {
	t.Helper()
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		t.Helper()
		var w World
		var commands map[string]Command
		host := func(_ *testing.T, d *datadriven.TestData) (string, error) {
			made, err := topology.Synthetic(d.Input)
			if err != nil {
				return "", err
			}
			w = World{Host: inventory.Host{Version: inventory.Version, Name: "host", Topology: made}}
			maps.Copy(commands, start(&w))
			return "", nil
		}
		commands = map[string]Command{"host": host, "policy": w.readPolicy}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			do, ok := commands[d.Cmd]
			if !ok {
				d.Fatalf(t, "unknown command %q; the first command is host", d.Cmd)
			}
			answer, err := do(t, d)
			if err != nil {
				return err.Error() + "\n"
			}
			return answer
		})
	})
}

func (w *World) readPolicy(_ *testing.T, d *datadriven.TestData) (string, error) {
	p, err := policy.Parse(strings.NewReader(d.Input))
	w.Policy = p
	return "", err
}

// NamedGuest returns the guest that the command's argument name names.
func (w *World) NamedGuest(t *testing.T, d *datadriven.TestData) (*inventory.Guest, error) {
	t.Helper()
	var name string
	d.ScanArgs(t, "name", &name)
	g, ok := w.Host.Guest(name)
	if !ok {
		return nil, fmt.Errorf("no guest %s", name)
	}
	return g, nil
}
