package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// glossary is where every printed value and column has its line.
const glossary = "../docs/words.md"

// valueSections says under which heading of the glossary the values of a type are.
var valueSections = map[string]string{
	"internal/topology.Class":           "Distance classes",
	"internal/topology.DeviceKind":      "Device kinds",
	"internal/guest.Hypervisor":         "Hypervisors",
	"internal/guest.CPUMode":            "CPU binding",
	"internal/guest.SMTPolicy":          "SMT",
	"internal/guest.SharingMode":        "CPU sharing",
	"internal/guest.HelperPolicy":       "Helper threads",
	"internal/guest.MemoryMode":         "Memory binding",
	"internal/guest.TopologyMode":       "Topology that the VM sees",
	"internal/decide/place.Constraint":  "Limits that exclude a node",
	"internal/fleet.Together":           "Rules of a group of VMs",
	"internal/fleet.RunState":           "States that a VM should have",
	"internal/fleet.Phase":              "Phases of a VM in a fleet",
	"internal/fleet.MigrationPhase":     "Phases of a migration",
	"internal/api/fleet.VMState":        "States of a VM in a fleet",
	"internal/api/fleet.HostState":      "States of a host in a fleet",
	"internal/api/fleet.Role":           "Roles of users",
	"internal/api/fleet.EventKind":      "Kinds of events of a fleet",
	"internal/api/fleet.MoveOutcome":    "Outcomes of migrations in a fleet",
	"internal/api/fleet.AuditKind":      "Kinds of objects of the audit",
	"internal/api/fleet.ProblemType":    "Problems that the fleet's server answers",
	"internal/decide/schedule.reason":   "Reasons that exclude a host",
	"internal/decide/schedule.Figure":   "Figures that compare hosts",
	"internal/decide/migrate.Obstacle":  "Reasons why a VM does not migrate",
	"internal/decide/check.Rule":        "Rules of a legal placement",
	"internal/decide/room.Obstacle":     "Reasons why no moves make room",
	"internal/plan.Kind":                "Steps",
	"internal/host/apply.Status":        "Results of a step",
	"internal/plan.MoveKind":            "Kinds of moves",
	"internal/plan.DegradedReason":      "Reasons why a VM is degraded",
	"internal/plan.BlockKind":           "Reasons why a VM is blocked",
	"internal/decide/handoff.Reason":    "Reasons of a hand-over",
	"internal/api/guest.Means":          "Means of parking a vCPU",
	"internal/plan.RemedyKind":          "Remedies",
	"internal/plan.PoolStepKind":        "Steps that change CPU pools",
	"internal/policy.Mode":              "Modes",
	"internal/policy.Answer":            "Answers to a competitor",
	"internal/policy.Capacity":          "Count",
	"internal/policy.Preference":        "Preference",
	"internal/alarm.Quantity":           "Alarm quantities",
	"internal/alarm.Severity":           "Severities of alarms",
	"internal/decide/diagnose.Severity": "Severities of findings",
	"internal/journal.Kind":             "Journal entries",
	"internal/journal.Effect":           "Effects",
	"internal/journal.TraceStep":        "Steps of a timeline",
	"internal/decide/control.Initiator": "Who began a move",
	"internal/inventory.GapKind":        "Gaps",
	"internal/inventory.ThreadRole":     "Threads",
	"internal/inventory.AccessSource":   "Sources of access figures",
	"internal/decide/drift.LocalSource": "Sources of the local share",
}

// notPrinted are types of text whose values no user sees, each with the reason.
var notPrinted = map[string]string{
	"internal/alarm.Side":               "where a saved alarm stood between its thresholds",
	"internal/decide/control.State":     "for transcripts",
	"internal/decide/control.JobKind":   "between the controller and its shell",
	"internal/decide/control.StopCause": "between the controller and its shell",
	"internal/decide/control.Level":     "levels of the log",
	"internal/api/fleet.Scope":          "a column of the table of operations",
	"internal/decide/reconcile.Kind":    "between the decision and the daemon that carries it out",
	"internal/host/daemon.State":        "systemd's words",
	"internal/host/linux.Root":          "a folder",
	"lab.Hypervisor":                    "a value of the flag --hypervisor, which its help explains",
	"internal/host/hosttest.Function":   "names of checks in a test suite",
	"tools/faults.libvirtd":             "states of a simulated libvirtd in fault runs",
}

func TestGlossary_HasEveryPrintedValue(t *testing.T) {
	sections := glossarySections(t)
	values := map[string][]string{}
	for folder, pkg := range sources(t) {
		for _, file := range pkg.files {
			for of, found := range textConstants(file) {
				values[folder+"."+of] = append(values[folder+"."+of], found...)
			}
		}
	}
	for of, found := range values {
		heading, known := valueSections[of]
		if !known && notPrinted[of] == "" {
			t.Errorf("%s is a type of text with constants: name its section of docs/words.md in valueSections, "+
				"or say in notPrinted why no user sees it", of)
		}
		if known {
			compareWords(t, heading, sections[heading], found)
		}
	}
	for _, of := range slices.Concat(slices.Collect(maps.Keys(valueSections)), slices.Collect(maps.Keys(notPrinted))) {
		if values[of] == nil {
			t.Errorf("there is no type %s with constants", of)
		}
	}
}

func TestGlossary_HasEveryFindingOfDoctor(t *testing.T) {
	var rules []string
	for _, file := range sources(t)["internal/decide/diagnose"].files {
		ast.Inspect(file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || v.Names[0].Name != "rules" {
				return true
			}
			for _, rule := range v.Values[0].(*ast.CompositeLit).Elts {
				rules = append(rules, textLiteral(rule.(*ast.CompositeLit).Elts[0]))
			}
			return false
		})
	}
	compareWords(t, "Findings of doctor", glossarySections(t)["Findings of doctor"], rules)
}

// heading matches the text of a column's heading.
var heading = regexp.MustCompile(`^[A-Z][A-Z0-9/\\> ]+( free/total)?$`)

func TestGlossary_HasEveryColumn(t *testing.T) {
	var columns []string
	for folder, pkg := range sources(t) {
		if !slices.Contains([]string{"cmd/numavisor", "internal/top", "lab/demo", "lab/peers"}, folder) {
			continue
		}
		for _, file := range pkg.files {
			ast.Inspect(file, func(n ast.Node) bool {
				columns = append(columns, headings(n)...)
				return true
			})
		}
	}
	compareWords(t, "Columns", glossarySections(t)["Columns"], columns)
}

// headings are the columns that a node of the code defines: a row of headings
// only, one that is added to a row, or the title of a column of top.
func headings(n ast.Node) (found []string) {
	var cells []ast.Expr
	switch n := n.(type) {
	case *ast.CompositeLit:
		cells = n.Elts
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); !ok || f.Name != "append" || len(n.Args) < 2 {
			return nil
		}
		cells = n.Args[1:]
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); !ok || key.Name != "title" {
			return nil
		}
		cells = []ast.Expr{n.Value}
	}
	for _, cell := range cells {
		text := textLiteral(cell)
		switch literal, ok := cell.(*ast.BasicLit); {
		case heading.MatchString(text):
			found = append(found, text)
		case !ok || literal.Value != `""`: // a column may have no heading
			return nil
		}
	}
	return found
}

func TestHeadings_AreFound(t *testing.T) {
	for code, want := range map[string][]string{
		`[]string{"VM", "MEMORY BY NODE"}`: {"VM", "MEMORY BY NODE"},
		`[]string{"VM", "", "FROM\\TO"}`:   {"VM", `FROM\TO`},
		`[]string{"VM", name}`:             nil,
		`[]string{"a", "b"}`:               nil,
		`append(row, "GUESTS", "WHY")`:     {"GUESTS", "WHY"},
		`append(row, name)`:                nil,
		`column{title: "CPU", width: 3}`:   {"CPU"},
		`f("CPU")`:                         nil,
	} {
		var got []string
		ast.Inspect(parsed(t, code), func(n ast.Node) bool {
			got = append(got, headings(n)...)
			return true
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", code, diff)
		}
	}
}

func parsed(t *testing.T, code string) ast.Expr {
	t.Helper()
	e, err := parser.ParseExpr(code)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// compareWords compares a section of the glossary with what the code prints.
func compareWords(t *testing.T, heading string, defined, printed []string) {
	t.Helper()
	for _, word := range defined {
		if !slices.Contains(printed, word) {
			t.Errorf("docs/words.md, %s: %q is not printed any more", heading, word)
		}
	}
	for _, word := range printed {
		if !slices.Contains(defined, word) {
			t.Errorf("docs/words.md, %s: %q is missing", heading, word)
		}
	}
}

// glossarySections are the terms in backquotes that begin a row, by the heading above them.
func glossarySections(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(glossary)
	if err != nil {
		t.Fatal(err)
	}
	sections, current := map[string][]string{}, ""
	for line := range strings.Lines(string(text)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			current = strings.TrimSpace(title)
		} else if row, ok := strings.CutPrefix(line, "| `"); ok {
			term, _, _ := strings.Cut(row, "`")
			sections[current] = append(sections[current], term)
		}
	}
	return sections
}

// textConstants are the values of constants of the file's own types, by type.
func textConstants(file *ast.File) map[string][]string {
	values := map[string][]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			spec := s.(*ast.ValueSpec)
			of, ok := spec.Type.(*ast.Ident)
			if !ok || len(spec.Values) != 1 || of.Name == "string" || of.Name == "byte" {
				continue
			}
			if text := textLiteral(spec.Values[0]); text != "" {
				values[of.Name] = append(values[of.Name], text)
			}
		}
	}
	return values
}

// textLiteral is the value of a literal text; "" for all else.
func textLiteral(e ast.Expr) string {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		return ""
	}
	return text
}
