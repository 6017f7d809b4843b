package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func everyCommand(t *testing.T) []*cobra.Command {
	t.Helper()
	all := allCommands(rootCommand())
	for _, c := range all {
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
	}
	return all
}

// usedBy says which commands offer a flag. A command offers a flag only where
// it has an effect: verify that before adding an entry here.
var usedBy = map[string]string{
	"all":          "alarms",
	"append":       "create",
	"capabilities": "balance capture doctor place topology",
	"cells":        "create place",
	"change":       "lab/bench",
	"change-at":    "lab/bench",
	"connect": "apply balance bind capture create daemon delete doctor list migrate place " +
		"pool/assign pool/create pool/delete pool/list pool/move pool/split-by-node run show undo",
	"cpu-binding": "bind create place run",
	"cpus":        "bind create place run",
	"delay-scale": "lab/bench",
	"device":      "bind create place run",
	"disk":        "create",
	"drifted":     "list",
	"dry-run": "apply bind create delete doctor migrate " + // doctor: with --fix
		"pool/assign pool/create pool/delete pool/move pool/split-by-node resize start stop",
	"emulator":        "bind create place",
	"emulator-path":   "create",
	"every":           "daemon",
	"explain":         "balance place schedule",
	"headroom":        "schedule",
	"fix":             "doctor",
	"for":             "pause",
	"force":           "delete undo",
	"full-speed":      "apply create undo",
	"guest":           "apply",
	"guests":          "lab/bench lab/run lab/shell",
	"host-nodes":      "lab/bench",
	"home":            "create place",
	"hosts":           "schedule",
	"housekeeping":    "apply balance bind capture create daemon doctor place run topology undo",
	"hwloc":           "balance capture doctor place topology",
	"hypervisor":      "lab/bench lab/run lab/shell",
	"hypervisor-type": "create",
	"address":         "up",
	"ca-fingerprint":  "daemon",
	"data":            "up",
	"host-name":       "daemon",
	"migration-uri":   "daemon up",
	"images":          "daemon up",
	"join":            "daemon",
	"join-file":       "daemon",
	"leave":           "daemon",
	"rack":            "daemon",
	"pool":            "create place",
	"project":         "create",
	"role":            "user/set",
	"rule":            "place",
	"projects":        "user/set",
	"expires":         "token/create token/join",
	"max-vms":         "project/set",
	"max-vcpus":       "project/set",
	"max-exclusive":   "project/set",
	"max-memory":      "project/set",
	"max-huge-pages":  "project/set",
	"server": "alarms audit balance bind create delete history host/cordon host/drain host/uncordon hosts list " +
		"migrate project/delete project/list project/set resize schedule show start stop " +
		"token/create token/join token/list token/revoke top user/delete user/list user/set",
	"to":               "migrate",
	"token":            "daemon",
	"idle-guests":      "lab/bench",
	"idle-memory":      "lab/bench",
	"immediate":        "create place",
	"initrd":           "create",
	"interval":         "top",
	"inventory":        "balance capture doctor migrate place topology",
	"io-thread-policy": "bind create place",
	"io-threads":       "create place",
	"kernel":           "create",
	"last":             "audit history",
	"late-guests":      "lab/bench",
	"layout":           "lab/bench",
	"timeline":         "history",
	"libvirt":          "lab/run lab/shell",
	"limit":            "lab/bench",
	"make-room":        "create",
	"managers":         "lab/bench",
	"max-class":        "bind create place run",
	"max-distance":     "bind create place run",
	"max-nodes":        "bind create place run",
	"measured":         "apply balance bind capture create daemon doctor place run topology undo",
	"memory":           "bind create lab/bench place resize run", // bind: of a process
	"memory-binding":   "bind create place run",
	"metrics":          "daemon",
	"most":             "lab/bench",
	"movable":          "create place",
	"name":             "create place",
	"min-vcpus":        "create place",
	"network":          "create",
	"node-cpus":        "lab/bench",
	"nodes":            "bind create place run",
	"once":             "top",
	"pace":             "apply bind daemon doctor undo", // doctor: with --fix
	"page-size":        "create place",
	"picture":          "topology",
	"pid":              "bind",
	"policy":           "apply balance bind create daemon doctor migrate place run schedule undo", // doctor: with --fix
	"qemu":             "lab/run lab/shell",
	"recompute":        "bind",
	"recreate":         "bind",
	"records": "alarms apply bind create daemon delete doctor history migrate " + // doctor: with --fix
		"pool/assign pool/create pool/delete pool/move pool/split-by-node run undo up",
	"results":    "lab/bench",
	"requests":   "schedule",
	"resume":     "apply",
	"root":       "balance capture doctor place topology",
	"rounds":     "lab/bench",
	"scope":      "lab/run lab/shell",
	"scheduler":  "pool/create",
	"seconds":    "lab/bench",
	"serial-log": "create",
	"shape":      "lab/demo lab/run lab/shell",
	"share":      "lab/run lab/shell",
	"since":      "history",
	"sharing":    "create place",
	"smt":        "bind create place run",
	"socket":     "balance capture daemon pause place resume top up",
	"sort":       "list",
	"spec":       "create place",
	"start":      "lab/bench",
	"state": "apply balance bind capture create daemon delete doctor list migrate place " +
		"pool/assign pool/create pool/delete pool/list pool/move pool/split-by-node run show undo up",
	"timeout": "apply balance bind capture create daemon delete doctor lab/demo lab/run lab/shell " +
		"list migrate place pool/assign pool/create pool/delete pool/list pool/move pool/split-by-node resize " +
		"run show start stop undo",
	"topology":        "create place",
	"transient":       "create",
	"uefi":            "create",
	"unmanaged":       "list",
	"vcpus":           "bind create lab/bench place resize run", // bind: of a process
	"verbose":         "daemon",
	"watch":           "list",
	"why":             "migrate pause",
	"max-downtime":    "host/drain migrate",
	"post-copy":       "host/drain migrate",
	"copy-storage":    "host/drain migrate",
	"window":          "lab/bench",
	"without-libvirt": "balance capture list place",
	"xl-info":         "balance capture doctor place topology",
	"transport":       "migrate",
	"xl":              "bind create migrate",
	"weight":          "create place",
	"xml":             "create place",
}

func TestFlags_AreOfferedOnlyWhereTheyHaveAnEffect(t *testing.T) {
	offered := map[string][]string{}
	for _, c := range everyCommand(t) {
		path := strings.ReplaceAll(strings.TrimPrefix(c.CommandPath(), "numavisor "), " ", "/")
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && f.Name != "version" {
				offered[f.Name] = append(offered[f.Name], path)
			}
		})
	}
	for name, by := range offered {
		slices.Sort(by)
		if got := strings.Join(by, " "); got != usedBy[name] {
			t.Errorf("--%s is offered by %q, the table says %q", name, got, usedBy[name])
		}
	}
	for name := range usedBy {
		if offered[name] == nil {
			t.Errorf("no command offers --%s, which the table has", name)
		}
	}
}

// The help shows every command, and every flag of a command, under one heading.
func TestHelp_ShowsEachCommandAndFlagInOneGroup(t *testing.T) {
	count := func(groups []helpGroup) map[string]int {
		n := map[string]int{}
		for _, g := range groups {
			for _, name := range g.names {
				n[name]++
			}
		}
		return n
	}
	commands, flags := count(commandGroups()), count(flagGroups())
	for name, n := range flags {
		if n != 1 {
			t.Errorf("--%s is in %d groups", name, n)
		}
		if usedBy[name] == "" && name != "output" && name != "help" && name != "version" {
			t.Errorf("--%s is in a group, and no command has it", name)
		}
	}
	for _, c := range everyCommand(t) {
		if c.HasParent() && !c.Parent().HasParent() && !c.Hidden && commands[c.Name()] != 1 {
			t.Errorf("%s is in %d groups", c.CommandPath(), commands[c.Name()])
		}
		var out bytes.Buffer
		c.SetOut(&out)
		if err := c.Usage(); err != nil {
			t.Fatal(err)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if shown := len(regexp.MustCompile(`(?m) --`+f.Name+`([ \[]|$)`).FindAllString(out.String(),
				-1)); !f.Hidden &&
				(flags[f.Name] != 1 || shown == 0) {
				t.Errorf("%s: --%s is in %d groups and shown %d times", c.CommandPath(), f.Name, flags[f.Name], shown)
			}
		})
		for _, line := range strings.Split(out.String(), "\n") {
			if len(line) > helpWidth {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), len(line), line)
			}
		}
	}
	for name := range commands {
		if c, _, err := rootCommand().Find([]string{name}); err != nil || c.Name() != name {
			t.Errorf("there is no command %s, which is in a group", name)
		}
	}
}

// A local variable that a flag sets and that is read nowhere else makes a flag
// without effect. The flags of a spec and of a host are fields of values that are
// passed on: the table above covers those.
func TestFlags_SetVariablesThatAreRead(t *testing.T) {
	set := token.NewFileSet()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			for name, uses := range flagVariables(f.Body) {
				if uses == 0 {
					t.Errorf("%s: the flag's variable %s is never read", set.Position(f.Pos()), name)
				}
			}
		}
	}
}

// flagVariables counts the uses of each variable that a flag sets, except its
// use in the flag's definition. Only local variables count.
func flagVariables(body ast.Node) map[string]int {
	uses, defined := map[string]int{}, map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasSuffix(f.Sel.Name, "Var") || len(n.Args) < 3 {
				return true
			}
			if a, ok := n.Args[0].(*ast.UnaryExpr); ok && a.Op == token.AND {
				if v, ok := a.X.(*ast.Ident); ok {
					defined[v.Name] = true
					uses[v.Name]-- // the definition itself
				}
			}
		case *ast.DeclStmt:
			return false
		case *ast.Ident:
			uses[n.Name]++
		}
		return true
	})
	of := map[string]int{}
	for name := range defined {
		of[name] = uses[name]
	}
	return of
}

// Commands that need root say so before anything else.
func TestRootIsAskedForFirst(t *testing.T) {
	for _, c := range []struct {
		line string
		want string
	}{
		{"create --name n --vcpus 1 --memory 64M", "create needs root: run 'sudo numavisor create ...'"},
		{"delete n", "delete needs root"},
		{"daemon", "daemon needs root"},
		{"history", "history needs root"},
		{"doctor --fix", "doctor --fix needs root"},
		{"doctor", ""},
		{"list", ""},
		{"place --vcpus 1 --memory 64M", ""},
		{"create --name n --vcpus 1 --memory 64M --state s", "create needs root"},
		{"create --name n --vcpus 1 --memory 64M --state s --records r", ""},
		{"bind n", "bind needs root"},
		{"bind n --state s", ""},
		{"history --records r", ""},
		{"create --help", ""},
	} {
		root := rootCommand()
		of, args, err := root.Find(strings.Fields(c.line))
		if err != nil {
			t.Fatal(err)
		}
		of.InitDefaultHelpFlag()
		if err := of.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(needsRoot(of, 1000))
		if (c.want == "") != (got == "<nil>") || !strings.HasPrefix(got, c.want) {
			if of.Flags().Changed("help") {
				continue // the help comes before any check
			}
			t.Errorf("%s: %s, want %q", c.line, got, c.want)
		}
		if err := needsRoot(of, 0); err != nil {
			t.Errorf("%s: root is refused: %v", c.line, err)
		}
	}
}
