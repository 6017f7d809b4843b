package metrics_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/host/metrics"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/status/statustest"
)

// The shipped dashboard and alerts must match the program: a panel of missing
// metrics shows nothing, and an alert on one never fires.
const (
	dashboardFile = "../../../deploy/grafana/numavisor.json"
	alertsFile    = "../../../deploy/prometheus/alerts.yaml"
	docsFile      = "../../../docs/metrics.md"
)

// known maps each metric to its labels; Prometheus itself makes up.
func known() map[string]metrics.Metric {
	all := map[string]metrics.Metric{"up": {Name: "up", Type: prometheus.GaugeValue}}
	for _, m := range metrics.All() {
		all[m.Name] = m
		if m.Bounds != nil {
			all[m.Name+"_bucket"] = metrics.Metric{Name: m.Name, Type: prometheus.CounterValue,
				Labels: append([]string{"le"}, m.Labels...)}
		}
	}
	return all
}

// check parses an expression and compares every selector in it with the
// metrics: name and labels exist, and only counters are rated. It returns the
// names of the metrics and all of their labels.
func check(t *testing.T, where, expr string) (names, labelNames []string) {
	t.Helper()
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", where, expr, err)
		return nil, nil
	}
	allowed := []string{"instance", "job"}
	var asked []string
	rated := map[string]bool{}
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			names = append(names, n.Name)
			m, ok := known()[n.Name]
			if !ok {
				t.Errorf("%s: there is no metric %q", where, n.Name)
			}
			allowed = append(allowed, m.Labels...)
			for _, l := range n.LabelMatchers {
				if l.Name != model.MetricNameLabel && l.Name != "instance" && l.Name != "job" &&
					!slices.Contains(m.Labels, l.Name) {
					t.Errorf("%s: %s has no label %q", where, n.Name, l.Name)
				}
			}
		case *parser.AggregateExpr:
			asked = append(asked, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				asked = append(asked, n.VectorMatching.MatchingLabels...)
			}
		case *parser.Call:
			if n.Func.Name == "rate" || n.Func.Name == "increase" {
				name := n.Args[0].(*parser.MatrixSelector).VectorSelector.(*parser.VectorSelector).Name
				rated[name] = true
			}
		}
		return nil
	})
	for _, l := range asked {
		if !slices.Contains(allowed, l) {
			t.Errorf("%s: no metric of it has the label %q", where, l)
		}
	}
	for _, name := range names {
		if counter := known()[name].Type == prometheus.CounterValue; counter != rated[name] {
			t.Errorf("%s: %s: counter %v, rated %v", where, name, counter, rated[name])
		}
	}
	if len(names) == 0 {
		t.Errorf("%s: no metric in the expression", where)
	}
	return names, allowed
}

type dashboard struct {
	UID           string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type, Definition string
		}
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ H, W, X, Y int }
		Targets                  []struct{ RefID, Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	variable    = regexp.MustCompile(`\$\{?(\w+)\}?`)
	placeholder = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

// resolved replaces the dashboard's variables by values.
func resolved(t *testing.T, where, expr string, variables []string) string {
	t.Helper()
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		name := variable.FindStringSubmatch(v)[1]
		if name == "__rate_interval" {
			return "5m"
		}
		if !slices.Contains(variables, name) {
			t.Errorf("%s: there is no variable %s", where, v)
		}
		return ".*"
	})
}

func TestDashboard_UsesExistingMetrics(t *testing.T) {
	d := readDashboard(t)
	var variables, used []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type != "query" {
			continue
		}
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
			continue
		}
		if _, have := check(t, "variable "+v.Name, resolved(t, v.Name, m[1], variables)); !slices.Contains(have, m[2]) {
			t.Errorf("variable %s: its metric has no label %q", v.Name, m[2])
		}
	}
	for _, want := range []string{"host", "guest"} {
		if !slices.Contains(variables, want) {
			t.Errorf("there is no variable %s", want)
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			where := fmt.Sprintf("panel %q, query %s", p.Title, target.RefID)
			names, have := check(t, where, resolved(t, where, target.Expr, variables))
			used = append(used, names...)
			for _, l := range placeholder.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(have, l[1]) {
					t.Errorf("%s: its legend shows the label %q, which it does not have", where, l[1])
				}
			}
		}
	}
	for _, m := range metrics.All() {
		if m.Bounds != nil {
			m.Name += "_bucket"
		}
		if !slices.Contains(used, m.Name) && !slices.Contains(notShown, m.Name) {
			t.Errorf("%s: no panel shows it; if that is intended, add it to notShown", m.Name)
		}
	}
}

// notShown are metrics for other purposes than the dashboard.
var notShown = []string{
	"numavisor_guest_cpus_throttled", "numavisor_guest_weight", "numavisor_guest_cpus_ungranted",
	"numavisor_moves_in_progress_copied_bytes", "numavisor_moves_in_progress_bytes", // shown by guest, as progress
	"numavisor_guest_advised", "numavisor_alarm", // for alerts and joins
	// for debugging the daemon itself
	"numavisor_start_time_seconds", "numavisor_samples_total", "numavisor_plans_total",
	"numavisor_plan_timestamp_seconds",
}

func TestDashboard_IsWellFormed(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.SchemaVersion < 42 {
		t.Errorf("uid %q, schemaVersion %d", d.UID, d.SchemaVersion)
	}
	var rows []string
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			rows = append(rows, p.Title)
		} else if len(p.Targets) == 0 || p.Description == "" {
			t.Errorf("panel %q has no query or no description", p.Title)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is wider than the grid", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	want := []string{"Host overview", "Nodes", "VMs", "Moves", "Alarms and the daemon"}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T) []rule {
	t.Helper()
	data, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// wantTemplate requires a text that Prometheus can expand, with the template
// functions that the alerts use.
func wantTemplate(t *testing.T, alert, text string) {
	t.Helper()
	functions := template.FuncMap{}
	for _, name := range []string{"humanize", "humanize1024", "humanizeDuration", "humanizePercentage"} {
		functions[name] = func(v float64) string { return fmt.Sprint(v) }
	}
	filled, err := template.New(alert).Funcs(functions).Parse("{{$labels := .Labels}}{{$value := .Value}}" + text)
	if err == nil {
		err = filled.Execute(io.Discard, map[string]any{"Labels": map[string]string{}, "Value": 1.5})
	}
	if err != nil {
		t.Errorf("%s: %q: %v", alert, text, err)
	}
}

var templateLabel = regexp.MustCompile(`\$labels\.(\w+)`)

func TestAlerts_UseExistingMetricsAndGiveARemedy(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range readRules(t) {
		if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Numavisor") {
			t.Errorf("alert %q: the name is used twice, or does not begin with Numavisor", r.Alert)
		}
		seen[r.Alert] = true
		_, have := check(t, r.Alert, r.Expr)
		if d, err := time.ParseDuration(r.For); err != nil || d < time.Minute {
			t.Errorf("%s: for %q is no duration, or too short to prevent flapping", r.Alert, r.For)
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || len(r.Annotations["description"]) < 80 {
			t.Errorf("%s: it must say what is wrong and what to do: %q", r.Alert, r.Annotations)
		}
		for _, text := range r.Annotations {
			wantTemplate(t, r.Alert, text)
			for _, l := range templateLabel.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(have, l[1]) {
					t.Errorf("%s: its text uses the label %q, which it does not have", r.Alert, l[1])
				}
			}
		}
	}
	if len(seen) == 0 {
		t.Error("alerts.yaml has no alerts")
	}
}

// asks returns the metrics of an alert.
func asks(t *testing.T, alert string) []string {
	t.Helper()
	for _, r := range readRules(t) {
		if r.Alert == alert {
			names, _ := check(t, r.Alert, r.Expr)
			return names
		}
	}
	t.Fatalf("there is no alert %s", alert)
	return nil
}

// A daemon that hangs before its first sample has no sample time: an alert on
// that alone would never fire.
func TestAlerts_CoverADaemonWithoutASample(t *testing.T) {
	text := exposed(t, status.Status{Host: "h1", Started: statustest.Noon, Mode: "auto"})
	given := func(name string) bool { return strings.Contains(text, "\n"+name+" ") }
	if names := asks(t, "NumavisorSourceUnreadable"); !slices.ContainsFunc(names, given) {
		t.Errorf("before the first sample none of %v is exposed", names)
	}
}

// Huge page pools are in use because they exist: on a host that reserves most
// of its memory for them, little of all memory is ever free.
func TestAlerts_PoolsDoNotMakeANodeFull(t *testing.T) {
	if names := asks(t, "NumavisorNodeMemoryFull"); !slices.Contains(names, "numavisor_node_hugepages_bytes") {
		t.Errorf("it uses %v, but not the pools", names)
	}
}

// The documentation's tables are generated from the collector's list and from
// the alerts.
func TestDocs_ListMetricsAndAlerts(t *testing.T) {
	data, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	want := between(t, string(data), "metrics", metricTable())
	want = between(t, want, "alerts", alertTable(readRules(t)))
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s: the tables differ from the lists; run with -update:\n%s", docsFile, diff)
	}
}

// between replaces the text between the marks of that name.
func between(t *testing.T, text, name, content string) string {
	t.Helper()
	begin, end := "<!-- "+name+": made by 'go test ./internal/host/metrics -update' -->\n", "<!-- /"+name+" -->\n"
	before, rest, ok1 := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s: the marks of %s are missing", docsFile, name)
	}
	return before + begin + content + end + after
}

// metricTable has a line for each metric.
func metricTable() string {
	var b strings.Builder
	b.WriteString("| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
	for _, m := range metrics.All() {
		kind := "gauge"
		if m.Type == prometheus.CounterValue {
			kind = "counter"
		}
		if m.Bounds != nil {
			kind = "histogram"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, kind, strings.Join(m.Labels, ", "), m.Unit, m.Help)
	}
	return b.String()
}

// alertTable has a line for each alert.
func alertTable(rules []rule) string {
	var b strings.Builder
	b.WriteString("| alert | severity | fires after | condition |\n|---|---|---|---|\n")
	for _, r := range rules {
		fmt.Fprintf(
			&b,
			"| %s | %s | %s | `%s` |\n",
			r.Alert,
			r.Labels["severity"],
			r.For,
			strings.Join(strings.Fields(r.Expr), " "),
		)
	}
	return b.String()
}
