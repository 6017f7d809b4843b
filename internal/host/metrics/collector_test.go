package metrics_test

import (
	"errors"
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/metrics"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/status/statustest"
	"github.com/numavisor/numavisor/internal/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files and docs/metrics.md")

// registryOf has only the collector of a status; it refuses metrics that are
// not described, or sent twice.
func registryOf(t testing.TB, s func() status.Status) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(metrics.New(func() (status.Status, error) { return s(), nil }, metrics.Build{Version: "1.2.3",
		Revision: "abc"})); err != nil {
		t.Fatal(err)
	}
	return r
}

// exposed is the text of one scrape.
func exposed(t testing.TB, s status.Status) string {
	t.Helper()
	return strings.ReplaceAll(scraped(t, registryOf(t, func() status.Status { return s })), runtime.Version(),
		"GOVERSION")
}

// scraped is the text of all that a registry gathers.
func scraped(t testing.TB, r *prometheus.Registry) string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// whole is a status with every field set.
func whole() status.Status {
	s := statustest.BusyHost(2, 11, 10)
	some, full := 0.25, 0.05
	s.Sample.Pressure = inventory.Pressure{CPU: &some, Memory: &some, MemoryFull: &full, IO: &full}
	s.Sample.Moves = inventory.KernelMoves{Moved: 20 * topology.MiB, Failed: topology.MiB, Balancing: 8 * topology.MiB}
	s.Sample.Accesses = []inventory.AccessSource{inventory.AccessPMU, inventory.AccessEstimate}
	s.Sample.Gaps = []inventory.Gap{
		{
			Kind:   inventory.CPUUnmeasured,
			Object: inventory.GuestRef("web1"),
			What:   "accesses",
			Why:    "no counter is free",
		},
	}
	s.Pause = &status.Pause{Since: statustest.Noon}
	s.Sample.Guests[1].Load.Ungranted = 2.5
	s.Sample.Guests[1].HandedOver = mirrored()
	s.Sample.Guests[2].Scaled = &inventory.Scaled{Used: topology.SetOf[guest.VCPUID](0, 1), Min: 1, Weight: 50,
		Demand: new(1.5), Means: "flip", Silent: true}
	return s
}

// mirrored is what a mirrored guest has, with every field set.
func mirrored() *inventory.HandedOver {
	h := &inventory.HandedOver{CPUs: topology.SetOf[topology.CPUID](0, 1, 2), Min: 2, Weight: 100, Demand: new(4.5),
		Means: "partition", Taken: 9, Misbehaved: 1, Refused: 3}
	for _, ms := range []int{2, 4, 4, 60, 2000} {
		h.Times.Add(time.Duration(ms) * time.Millisecond)
	}
	return h
}

func TestExposition(t *testing.T) {
	got := exposed(t, whole())
	const path = "testdata/busy_host.prom"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: the exposition differs (run with -update to accept):\n%s", path, diff)
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	s := whole()
	problems, err := testutil.GatherAndLint(registryOf(t, func() status.Status { return s }))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, m := range metrics.All() {
		if strings.HasSuffix(m.Name, "_total") != (m.Type == prometheus.CounterValue) {
			t.Errorf("%s: only counters end in _total", m.Name)
		}
		if m.Unit == "" || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: unit %q, help %q", m.Name, m.Unit, m.Help)
		}
	}
}

// The golden exposition proves that the collector sends each metric.
func TestCollector_SendsEveryMetric(t *testing.T) {
	text := exposed(t, whole())
	for _, m := range metrics.All() {
		if !strings.Contains(text, "# TYPE "+m.Name+" ") {
			t.Errorf("%s: no series", m.Name)
		}
	}
}

// Before its first sample a daemon leaves out what it does not know, and never
// sends zeros instead.
func TestCollector_BeforeTheFirstSample(t *testing.T) {
	text := exposed(t, status.Status{Host: "h1", Started: statustest.Noon, Mode: "auto"})
	for _, absent := range []string{"numavisor_sample_timestamp_seconds", "numavisor_plan_timestamp_seconds",
		"numavisor_pressure_ratio", "numavisor_kernel_moved", "numavisor_node_", "numavisor_guest_"} {
		if strings.Contains(text, absent) {
			t.Errorf("%s was sent:\n%s", absent, text)
		}
	}
	for _, there := range []string{"numavisor_samples_total 0", `numavisor_host_mode{mode="auto"} 1`,
		`numavisor_alarms{severity="critical"} 0`, "numavisor_start_time_seconds 1.7778"} {
		if !strings.Contains(text, there) {
			t.Errorf("%s was not sent:\n%s", there, text)
		}
	}
}

// A daemon that does not answer is a failed scrape, not one whose counters are
// back at zero and whose alarms have cleared.
func TestCollector_FailsTheScrapeWithoutAStatus(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(
		metrics.New(func() (status.Status, error) { return status.Status{}, errors.New("the daemon has stopped") },
			metrics.Build{Version: "1.2.3"}),
	)
	families, err := r.Gather()
	if err == nil || !strings.Contains(err.Error(), "the daemon has stopped") || len(families) != 0 {
		t.Errorf("scraped %v: %v", families, err)
	}
}

func TestCollector_EndedGuestsLeaveNoSeries(t *testing.T) {
	s := statustest.BusyHost(8, 43, 0)
	r := registryOf(t, func() status.Status { return s })
	if text := scraped(t, r); !strings.Contains(text, `guest="db1"`) ||
		!strings.Contains(text, `object="guest build7"`) {
		t.Fatalf("the guests are missing:\n%s", text)
	}
	s = statustest.BusyHost(8, 1, 2)
	if text := scraped(t, r); strings.Contains(text, "db1") || strings.Contains(text, "build7") {
		t.Errorf("guests that have ended are still exposed:\n%s", text)
	}
}

// A host without means to measure accesses is not faulty, here as in the
// daemon's own alarms: most hosts would have a permanent alert.
func TestCollector_MissingAccessSourcesAreNoGaps(t *testing.T) {
	s := whole()
	s.Sample.Gaps = []inventory.Gap{
		{
			Kind:   inventory.AccessUnmeasured,
			Object: inventory.HostRef(),
			What:   inventory.AccessText("pmu"),
			Why:    "no such event",
		},
		{Kind: inventory.MemoryUnread, Object: inventory.GuestRef("db1"), What: "its memory by node", Why: "EIO"},
	}
	if text := exposed(t, s); !strings.Contains(text, "numavisor_sample_gaps 1\n") {
		t.Errorf("the scrape is\n%s", text)
	}
}

// A duplicate or a value that is not text must not fail the whole scrape.
func TestCollector_OddStatuses(t *testing.T) {
	s := whole()
	s.Guests = append(s.Guests, s.Guests[0])
	s.Guests[2].Name, s.Sample.Guests[2].Name = "bad\xff\"\n", "bad\xff\"\n"
	s.Sample.Guests = append(s.Sample.Guests, s.Sample.Guests[0])
	s.Sample.Nodes = append(s.Sample.Nodes, s.Sample.Nodes[0])
	s.Sample.Accesses = append(s.Sample.Accesses, s.Sample.Accesses...)
	s.Alarms = append(s.Alarms, s.Alarms...)
	s.Competitors = append(s.Competitors, s.Competitors...)
	s.Moving = append(s.Moving, s.Moving...)
	s.Advice = append(s.Advice, s.Advice...)
	text := exposed(t, s)
	if !strings.Contains(text, `guest="bad`+"\uFFFD"+`\"\n"`) ||
		!strings.Contains(text, "numavisor_moves_in_progress 2") {
		t.Errorf("the scrape is\n%s", text)
	}
}

func TestCollector_OmitsClearedAlarms(t *testing.T) {
	s := whole()
	s.Alarms[0].Cleared = s.Alarms[0].Last
	text := exposed(t, s)
	if strings.Contains(text, `quantity="guest-remote"`) ||
		!strings.Contains(text, `numavisor_alarms{severity="critical"} 0`) ||
		!strings.Contains(text, `numavisor_alarms{severity="warning"} 1`) {
		t.Errorf("the scrape is\n%s", text)
	}
}

// The bound is that of the package comment.
func TestCollector_SeriesAreBounded(t *testing.T) {
	for _, c := range []struct{ nodes, guests int }{{1, 0}, {2, 11}, {8, 200}, {64, 200}} {
		s := statustest.BusyHost(c.nodes, c.guests, 0)
		for i := range s.Sample.Guests { // the worst: memory of each guest on each node
			g := &s.Sample.Guests[i]
			g.MemoryByNode = topology.MemoryByNode{}
			for _, n := range s.Topology.Nodes {
				g.MemoryByNode[n.ID] = topology.GiB
			}
		}
		half := len(s.Sample.Guests) / 2
		for i := range half {
			s.Sample.Guests[i].HandedOver = mirrored()
		}
		n := seriesOf(t, scraped(t, registryOf(t, func() status.Status { return s })))
		if most := c.guests*(c.nodes+20) + 20*c.nodes + 25*half + 2*len(s.Alarms) + 60; n > most {
			t.Errorf("%d nodes, %d guests: %d series; the limit is %d", c.nodes, c.guests, n, most)
		}
	}
	s := statustest.BusyHost(8, 200, 0)
	n, err := testutil.GatherAndCount(registryOf(t, func() status.Status { return s }))
	if err != nil || n > 3700 {
		t.Errorf("200 guests on 8 nodes: %d series (%v), the package comment says about 3600", n, err)
	}
	t.Logf("200 guests on 8 nodes: %d series", n)
}

// seriesOf counts the series of a scrape; a histogram has one for each bucket.
func seriesOf(t *testing.T, text string) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	if n == 0 {
		t.Fatal("the scrape is empty")
	}
	return n
}

// From the histogram a reader gets the median and the 99th percentile, and a status from
// elsewhere with odd counts does not fail the scrape.
func TestCollector_TimesOfReleases(t *testing.T) {
	s := whole()
	text := exposed(t, s)
	name := s.Sample.Guests[1].Name
	for _, want := range []string{
		`numavisor_guest_cpu_release_seconds_bucket{guest="` + name + `",le="0.002"} 1`,
		`numavisor_guest_cpu_release_seconds_bucket{guest="` + name + `",le="0.005"} 3`,
		`numavisor_guest_cpu_release_seconds_bucket{guest="` + name + `",le="0.1"} 4`,
		`numavisor_guest_cpu_release_seconds_bucket{guest="` + name + `",le="1"} 4`,
		`numavisor_guest_cpu_release_seconds_bucket{guest="` + name + `",le="+Inf"} 5`,
		`numavisor_guest_cpu_release_seconds_sum{guest="` + name + `"} 2.07`,
		`numavisor_guest_cpu_release_seconds_count{guest="` + name + `"} 5`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s in\n%s", want, text)
		}
	}
	s.Sample.Guests[1].HandedOver = &inventory.HandedOver{Times: inventory.HandoverTimes{Counts: []uint64{7}}}
	if text := exposed(t, s); !strings.Contains(text, "_release_seconds_count{guest=\""+name+"\"} 7\n") ||
		!strings.Contains(text, `numavisor_guest_agent_up{guest="`+name+`",means="unknown"} 0`) {
		t.Errorf("the scrape is\n%s", text)
	}
}

func BenchmarkScrape200Guests(b *testing.B) {
	s := statustest.BusyHost(8, 200, 0)
	r := prometheus.NewRegistry() // as in the daemon
	r.MustRegister(metrics.New(func() (status.Status, error) { return s, nil }, metrics.Build{Version: "1.2.3"}))
	for b.Loop() {
		if text := scraped(b, r); text == "" {
			b.Fatal("the scrape was empty")
		}
	}
}
