package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"numavisor": main})
}

// TestScripts runs scripts against the program that check the command contract:
// output, format and exit status. They run without a hypervisor, on captured
// hosts.
func TestScripts(t *testing.T) {
	hosts := t.TempDir()
	for _, name := range []string{"8cpu-4n-square", "8cpu-3n-cxl-hmat", "8cpu-2n-xen"} {
		if err := os.Symlink(topologytest.Root(t, name), filepath.Join(hosts, name)); err != nil {
			t.Fatal(err)
		}
	}
	archives, err := filepath.Abs("../../testdata/hosts")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOSTS", hosts)
			e.Setenv("ARCHIVES", archives)
			e.Setenv("EXAMPLES", filepath.Join(archives, "../../examples"))
			e.Setenv("LIBVIRT_DEFAULT_URI", "qemu+unix:///system?socket="+e.WorkDir+"/no-libvirtd")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": wantStatus,
			"field":  wantField,
			"large":  largeFile,
			"daemon": serveLoads,
		},
	})
}

// wantStatus runs numavisor and requires an exit status: "status 2 place
// --vcpus 0". The program reports an error in one line, with its causes below it;
// the errors of a file have a line each.
func wantStatus(ts *testscript.TestScript, _ bool, args []string) {
	status := 0
	var ended *exec.ExitError
	if err := ts.Exec("numavisor", args[1:]...); errors.As(err, &ended) {
		status = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	said := strings.TrimRight(ts.ReadFile("stderr"), "\n")
	if fmt.Sprint(status) != args[0] {
		ts.Fatalf("exit status %d, want %s: %s", status, args[0], said)
	}
	lines := slices.DeleteFunc(strings.Split(said, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "  cause: ")
	})
	for len(lines) > 1 && strings.HasPrefix(lines[0], "numavisor: note:") {
		lines = lines[1:]
	}
	for len(lines) > 1 && faultLine.MatchString(lines[0]) {
		lines = lines[1:]
	}
	if (status == exitFailed || status == exitUsage) && (len(lines) > 1 || lines[0] == "") {
		ts.Fatalf("an error is to be one line, this is %q", said)
	}
}

var faultLine = regexp.MustCompile(`^numavisor: (spec|policy|measured matrix|hosts|requests) \S+:\d+:\d+: `)

// wantField checks a field of the last printed JSON: "field stdout nodes.0.cpus
// 0-1".
func wantField(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &v); err != nil {
		ts.Fatalf("%v in %s", err, ts.ReadFile(args[0]))
	}
	for _, name := range strings.Split(args[1], ".") {
		switch at := v.(type) {
		case map[string]any:
			next, there := at[name]
			if !there {
				if neg {
					return
				}
				ts.Fatalf("no field %s of %s", name, args[1])
			}
			v = next
		case []any:
			i := int(name[0] - '0')
			if len(name) != 1 || i < 0 || i >= len(at) {
				ts.Fatalf("no element %s of %s, there are %d", name, args[1], len(at))
			}
			v = at[i]
		default:
			ts.Fatalf("%s of %s: %v has no fields", name, args[1], at)
		}
	}
	if neg {
		ts.Fatalf("there is a field %s", args[1])
	}
	text, _ := json.Marshal(v)
	if len(args) > 2 && strings.Trim(string(text), `"`) != args[2] {
		ts.Fatalf("%s is %s, want %s", args[1], text, args[2])
	}
}

// serveLoads answers as a daemon that has measured the given number of CPUs in use
// on node 0: "daemon d.sock 900", or "daemon d.sock none" for one that has no loads
// yet. It ends with the script.
func serveLoads(ts *testscript.TestScript, _ bool, args []string) {
	var load []inventory.NodeLoad
	if args[1] != "none" {
		cpus, err := strconv.ParseFloat(args[1], 64)
		ts.Check(err)
		load = []inventory.NodeLoad{{Node: 0, CPU: cpus}}
	}
	l, err := net.Listen("unix", ts.MkAbs(args[0]))
	ts.Check(err)
	measured := inventory.Host{Version: inventory.Version, Name: "here", Load: load}
	s := http.Server{Handler: hostapi.Handler(measuring{inventory: measured}), ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	ts.Defer(func() { _ = s.Close(); <-ended })
}

// measuring is a daemon that only returns an inventory.
type measuring struct {
	hostapi.Daemon
	inventory inventory.Host
}

func (m measuring) Inventory(context.Context) (inventory.Host, error) {
	if m.inventory.Load == nil {
		return m.inventory, errors.New("nothing measured yet")
	}
	return m.inventory, nil
}

// Status implements hostapi.Daemon.
func (m measuring) Status(context.Context) (status.Status, error) { return status.Status{}, nil }

// largeFile makes a sparse file of 100 MB of zeros.
func largeFile(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path, nil, 0o644))
	ts.Check(os.Truncate(path, 100<<20))
}

// The help lists every command once. Each command describes itself and shows an
// example; no line is wider than a terminal.
func TestHelpOfEveryCommand(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if !c.HasSubCommands() && c.Name() != "help" && (c.Long == "" || c.Example == "") {
			t.Errorf("%s has no long description, or no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Long+"\n"+c.Example, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line of %d characters: %s", c.CommandPath(), len(line), line)
			}
		}
		listed := map[string]bool{}
		for _, sub := range c.Commands() {
			if listed[sub.Name()] {
				t.Errorf("%s is listed twice", sub.CommandPath())
			}
			listed[sub.Name()] = true
			visit(sub)
		}
	}
	visit(rootCommand())
}
