package telemetry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/telemetry"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that waits for it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that tests set. Databases call it from several goroutines.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)} }

func open(t *testing.T, o telemetry.Options) *telemetry.DB {
	t.Helper()
	d, err := telemetry.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeDB(t *testing.T, d *telemetry.DB) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// loads are those of a host with two nodes and a VM.
func loads(taken time.Time, cpu float64) fleet.Loads {
	share := 0.75
	return fleet.Loads{
		Taken: taken,
		Nodes: []fleet.Node{
			{NodeLoad: inventory.NodeLoad{Node: 0, CPU: cpu, Wait: 0.5}, Free: topology.GiB},
			{NodeLoad: inventory.NodeLoad{Node: 1, CPU: 2 * cpu}, Free: 2 * topology.GiB},
		},
		VMs:    []fleet.VMLoad{{Name: "web", GuestLoad: inventory.GuestLoad{CPU: cpu, Wait: 0.25}, LocalShare: &share}},
		Alarms: map[string]int{"node-memory": 2},
	}
}

func report(t *testing.T, d *telemetry.DB, host string, l fleet.Loads) {
	t.Helper()
	reportPlaced(t, d, host, l, nil)
}

func reportPlaced(
	t *testing.T, d *telemetry.DB, host string, l fleet.Loads, placed map[string]topology.NodeSet,
) {
	t.Helper()
	if err := d.Report(t.Context(), host, l, placed); err != nil {
		t.Fatal(err)
	}
}

// ask returns the data of an answer as text, and its status.
func ask(t *testing.T, d *telemetry.DB, path string, pairs ...string) (string, int) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/api/v1/"+path+"?"+form.Encode(), nil))
	var a struct {
		Status    string
		Data      json.RawMessage
		ErrorType string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	if success := w.Code == http.StatusOK; success != (a.Status == "success") || success != (a.ErrorType == "") {
		t.Errorf("%s: status %d: %s", path, w.Code, w.Body)
	}
	return string(a.Data), w.Code
}

func wantAnswer(t *testing.T, d *telemetry.DB, want, path string, pairs ...string) {
	t.Helper()
	got, code := ask(t, d, path, pairs...)
	if diff := cmp.Diff(want, got); code != http.StatusOK || diff != "" {
		t.Errorf("%s %q: status %d (-want +got):\n%s", path, pairs, code, diff)
	}
}

func TestHandler_AnswersAsPrometheusDoes(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now})
	defer closeDB(t, d)
	web := map[string]topology.NodeSet{"web": topology.SetOf[topology.NodeID](0, 1)}
	reportPlaced(t, d, "h1", loads(c.Now(), 1), web)
	report(t, d, "h2", loads(c.Now(), 4))
	reportPlaced(t, d, "h1", loads(c.add(time.Minute), 1.5), web)

	wantAnswer(t, d, `{"result":[{"metric":{"host":"h1"},"value":[1795348860,"4.5"]},`+
		`{"metric":{"host":"h2"},"value":[1795348860,"12"]}],"resultType":"vector"}`,
		"query", "query", "sort(sum by (host) (numavisor_fleet_node_cpus_used))")
	wantAnswer(t, d, `{"result":[{"metric":{"__name__":"numavisor_fleet_vm_cpus_used","host":"h1","vm":"web"},`+
		`"values":[[1795348800,"1"],[1795348860,"1.5"]]}],"resultType":"matrix"}`,
		"query_range", "query", `numavisor_fleet_vm_cpus_used{host="h1"}`, "start", "1795348800", "end",
		"2026-11-22T12:01:00Z", "step", "60s")
	wantAnswer(t, d, `{"result":[1795348860,"3"],"resultType":"scalar"}`, "query", "query", "1+2")
	wantAnswer(t, d, `{"result":[1795348860,"text"],"resultType":"string"}`, "query", "query", `"text"`)
	wantAnswer(t, d, `[{"__name__":"numavisor_fleet_vm_placed","host":"h1","nodes":"0-1","vm":"web"}]`,
		"series", "match[]", "numavisor_fleet_vm_placed")
	wantAnswer(t, d, `["__name__","host","node"]`, "labels", "match[]", "numavisor_fleet_node_free_bytes")
	wantAnswer(t, d, `["__name__","host","kind","node","nodes","vm"]`, "labels")
	wantAnswer(t, d, `["h1","h2"]`, "label/host/values")
	wantAnswer(t, d, `["h1"]`, "label/host/values", "limit", "1")
	wantAnswer(t, d, `["h2"]`, "label/host/values", "match[]", `{__name__=~".+",host="h2"}`, "match[]", `{host="none"}`)
	wantAnswer(t, d, `[]`, "label/none/values")
	wantAnswer(t, d, `{"numavisor_fleet_vm_cpus_used":[{"help":"CPUs that the vCPUs of the VM used. Labels: host, vm.",`+
		`"type":"gauge","unit":""}]}`, "metadata", "metric", "numavisor_fleet_vm_cpus_used")
	if text, code := ask(t, d, "status/buildinfo"); code != http.StatusOK || !strings.Contains(text, `"version"`) {
		t.Errorf("status %d: %s", code, text)
	}
	w := httptest.NewRecorder() // Grafana posts long queries
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/query",
		strings.NewReader("query=vector(7)&time=1795348800.5"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	d.Handler().ServeHTTP(w, r)
	want := `{"status":"success","data":{"result":[{"metric":{},"value":[1795348800.5,"7"]}],"resultType":"vector"}}`
	if strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("a posted query: %s", w.Body)
	}
}

// The requests of Grafana's data source for Prometheus: its health check, the query builder with its suggestions,
// variables, and panels. It may send each as GET or POST; only names of labels and metadata are always read by GET.
func TestHandler_AnswersGrafana(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now})
	defer closeDB(t, d)
	report(t, d, "h1", loads(c.Now(), 1))
	now := strconv.FormatInt(c.Now().Unix(), 10)
	for _, q := range []struct {
		path string
		form url.Values
		want string
	}{
		{"query", url.Values{"query": {"1+1"}, "time": {now}}, `"scalar"`},
		{"query", url.Values{"query": {`count by (__name__) ({__name__=~".+"})`}, "time": {now}}, "numavisor_fleet_node"},
		{"query_range", url.Values{"query": {`rate(numavisor_fleet_node_cpus_used{host="h1"}[1m])`}, "start": {now},
			"end": {now}, "step": {"15"}}, `"matrix"`},
		{"series", url.Values{"match[]": {`{__name__="numavisor_fleet_node_cpus_used"}`}, "start": {now}, "end": {now}},
			`"host":"h1"`},
		{"labels", url.Values{"match[]": {`{__name__="numavisor_fleet_node_cpus_used"}`}, "start": {now}, "end": {now},
			"limit": {"40000"}}, `"host"`},
		{"label/__name__/values", url.Values{"start": {now}, "end": {now}}, "numavisor_fleet_node_cpus_used"},
		{"metadata", url.Values{"limit": {"10"}}, `"gauge"`},
		{"status/buildinfo", url.Values{}, `"version"`},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/"+q.path+"?"+q.form.Encode(), http.NoBody)
			if method == http.MethodPost {
				r = httptest.NewRequestWithContext(t.Context(), method, "/api/v1/"+q.path,
					strings.NewReader(q.form.Encode()))
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			w := httptest.NewRecorder()
			d.Handler().ServeHTTP(w, r)
			if text := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(text, `"status":"success"`) ||
				!strings.Contains(text, q.want) {
				t.Errorf("%s %s: status %d: %s; want %s", method, q.path, w.Code, text, q.want)
			}
		}
	}
}

// TestHandler_DescribesEachMetric compares the description with what a report makes.
func TestHandler_DescribesEachMetric(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now})
	defer closeDB(t, d)
	l := loads(c.Now(), 1)
	l.MoverBytesPerSecond = topology.GiB
	reportPlaced(t, d, "h", l, map[string]topology.NodeSet{"web": topology.SetOf[topology.NodeID](0)})
	text, _ := ask(t, d, "metadata")
	described := map[string]any{}
	if err := json.Unmarshal([]byte(text), &described); err != nil {
		t.Fatal(err)
	}
	text, _ = ask(t, d, "label/__name__/values")
	var names []string
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if described[name] == nil {
			t.Errorf("%s has no description", name)
		}
	}
	if len(names) != len(described) {
		t.Errorf("%d metrics, %d descriptions", len(names), len(described))
	}
}

func TestHandler_RefusesBadRequests(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now})
	defer closeDB(t, d)
	for _, request := range [][]string{
		{"query", "query", "sum("},
		{"query"},
		{"query", "query", "1", "time", "noon"},
		{"query", "query", "1", "timeout", "x"},
		{"query_range", "query", "1"},
		{"query_range", "query", "1", "start", "10", "end", "5", "step", "1"},
		{"query_range", "query", "1", "start", "1", "end", "5", "step", "0"},
		{"query_range", "query", "1", "start", "1", "end", "5", "step", "-1"},
		{"query_range", "query", "1", "start", "1", "end", "900000", "step", "1"},
		{"query_range", "query", "1", "start", "1e300", "end", "5", "step", "1e300"},
		{"series"},
		{"series", "match[]", "{"},
		{"labels", "limit", "-1"},
		{"labels", "limit", "many"},
		{"labels", "start", "?"},
	} {
		if text, code := ask(t, d, request[0], request[1:]...); code != http.StatusBadRequest {
			t.Errorf("%q: status %d: %s", request, code, text)
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/query",
		strings.NewReader("query="+strings.Repeat("1", 2<<20)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	d.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest {
		t.Errorf("a query of 2 MiB: status %d", w.Code)
	}
}

// TestReport_RepeatedAndReordered sends each report twice, and old ones between them.
func TestReport_RepeatedAndReordered(t *testing.T) {
	c := newClock()
	o := telemetry.Options{Folder: t.TempDir(), Now: c.Now}
	d := open(t, o)
	begin := c.Now()
	for i := range 10 {
		at := c.add(time.Minute)
		report(t, d, "h", loads(at, float64(i)))
		report(t, d, "h", loads(at, 100))
		report(t, d, "h", loads(at.Add(-30*time.Second), 100))
		if i == 5 { // a report that was taken as the last one before a restart
			closeDB(t, d)
			d = open(t, o)
			report(t, d, "h", loads(at, 100))
		}
	}
	defer closeDB(t, d)
	wantAnswer(t, d, `{"result":[{"metric":{},"value":[1795349400,"10"]}],"resultType":"vector"}`, "query", "query",
		`sum(count_over_time(numavisor_fleet_vm_cpus_used[1h]))`)
	wantAnswer(t, d, `{"result":[{"metric":{"host":"h","vm":"web"},"value":[1795349400,"9"]}],"resultType":"vector"}`,
		"query", "query", `max_over_time(numavisor_fleet_vm_cpus_used[1h])`)
	wantAnswer(t, d, `{"result":[],"resultType":"vector"}`, "query", "query", "numavisor_fleet_host_up", "time",
		begin.Format(time.RFC3339))
}

// TestReport_ClocksThatDiffer reports with clocks that are a day off.
func TestReport_ClocksThatDiffer(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now})
	defer closeDB(t, d)
	for range 3 {
		now := c.add(time.Minute)
		report(t, d, "behind", loads(now.Add(-24*time.Hour), 1))
		report(t, d, "ahead", loads(now.Add(24*time.Hour), 1))
	}
	wantAnswer(t, d, `{"result":[{"metric":{},"value":[1795348980,"2"]}],"resultType":"vector"}`,
		"query", "query", "count(count_over_time(numavisor_fleet_host_up[10m]) == 3)")
	c.add(48 * time.Hour) // the server's clock jumps ahead, and back
	report(t, d, "ahead", loads(c.Now(), 1))
	c.add(-47 * time.Hour)
	if err := d.Report(t.Context(), "ahead", loads(c.Now(), 1), nil); !errors.Is(err, telemetry.ErrAhead) {
		t.Errorf("before what the database has: %v", err)
	}
}

func TestDB_SurvivesARestart(t *testing.T) {
	c := newClock()
	o := telemetry.Options{Folder: t.TempDir(), Now: c.Now}
	d := open(t, o)
	report(t, d, "h", loads(c.Now(), 1))
	// A process that is killed leaves its log behind: copy the folder before it is closed.
	killed := filepath.Join(t.TempDir(), "killed")
	if err := os.CopyFS(killed, os.DirFS(o.Folder)); err != nil {
		t.Fatal(err)
	}
	closeDB(t, d)
	const want = `{"result":[{"metric":{"host":"h"},"value":[1795348800,"3"]}],"resultType":"vector"}`
	for _, folder := range []string{o.Folder, killed} {
		o.Folder = folder
		again := open(t, o)
		wantAnswer(t, again, want, "query", "query", "sum by (host) (numavisor_fleet_node_cpus_used)")
		closeDB(t, again)
	}
}

func TestDB_BoundsItsSeries(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now, MaxSeries: 20})
	defer closeDB(t, d)
	for range 2 {
		at := c.add(time.Minute)
		for i := range 10 {
			l := loads(at, 1)
			l.VMs[0].Name = fmt.Sprint("vm", i)
			report(t, d, fmt.Sprint("h", i), l)
		}
	}
	size := d.Size()
	if size.Series != 40 || size.Refused == 0 || size.Files == 0 {
		t.Errorf("%+v", size)
	}
	// The series of the first VM were there first, and go on; those of the last hosts never were.
	wantAnswer(t, d, `{"result":[{"metric":{"host":"h0","vm":"vm0"},"value":[1795348920,"2"]}],"resultType":"vector"}`,
		"query", "query", `count_over_time(numavisor_fleet_vm_cpus_used{host=~"h0|h9"}[10m])`)
}

// TestDB_ForgetsOldSamples reports for 16 hours to a database that retains six.
func TestDB_ForgetsOldSamples(t *testing.T) {
	if testing.Short() {
		t.Skip("the database compacts in the background, which takes seconds")
	}
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now, Retention: 6 * time.Hour})
	defer closeDB(t, d)
	for range 16 * 4 {
		report(t, d, "h", loads(c.add(15*time.Minute), 1))
	}
	const first, nothing = "count_over_time(numavisor_fleet_host_up[4h] offset 12h)", `{"result":[],"resultType":"vector"}`
	for range 3000 { // the database compacts by itself
		if text, _ := ask(t, d, "query", "query", first); text == nothing {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	wantAnswer(t, d, nothing, "query", "query", first)
	wantAnswer(t, d, `{"result":[{"metric":{"host":"h"},"value":[1795406400,"20"]}],"resultType":"vector"}`,
		"query", "query", "count_over_time(numavisor_fleet_host_up[5h])")
}

// TestDB_NeedsTheSpaceThatIsStated reports six days of a host whose loads change all the time, and compares the files
// with BytesPerSeries.
func TestDB_NeedsTheSpaceThatIsStated(t *testing.T) {
	if testing.Short() {
		t.Skip("the database compacts in the background, which takes seconds")
	}
	const days, nodes, vms = 6, 8, 10
	c, folder := newClock(), t.TempDir()
	d := open(t, telemetry.Options{Folder: folder, Now: c.Now})
	defer closeDB(t, d)
	random := rand.New(rand.NewPCG(1, 0))
	for range days * 24 * 60 {
		jitter := time.Duration(random.IntN(5000)) * time.Millisecond // hosts report every five seconds
		l := fleet.Loads{Taken: c.add(time.Minute).Add(-jitter)}
		for n := range topology.NodeID(nodes) {
			l.Nodes = append(l.Nodes, fleet.Node{NodeLoad: inventory.NodeLoad{Node: n, CPU: 8 * random.Float64(),
				Wait: random.Float64()}, Free: topology.Bytes(random.Uint64N(uint64(64 * topology.GiB)))})
		}
		for n := range vms {
			share := random.Float64()
			l.VMs = append(l.VMs, fleet.VMLoad{Name: fmt.Sprint("vm", n), LocalShare: &share,
				GuestLoad: inventory.GuestLoad{CPU: 4 * random.Float64(), Wait: random.Float64()}})
		}
		report(t, d, "h", l)
	}
	const reports, perSample = days * 24 * 60, telemetry.BytesPerSeries / (30 * 24 * 60)
	wanted := reports * d.Size().Series / 10 * 9 // what is newer is in the head
	samples, size := blocks(t, folder)
	for end := time.Now().Add(time.Minute); samples < wanted && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond) // the database compacts by itself
		samples, size = blocks(t, folder)
	}
	t.Logf("%d samples in blocks of %v: %.2f bytes each", samples, size, float64(size)/float64(max(1, samples)))
	if samples < wanted || size > perSample*topology.Bytes(samples) {
		t.Errorf("%d samples, of at least %d, take %v; %v are stated for a sample", samples, wanted, size, perSample)
	}
}

// blocks returns the samples in the blocks of a database, and the size of the blocks.
func blocks(t *testing.T, folder string) (samples uint64, size topology.Bytes) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, "*", "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		var meta struct{ Stats struct{ NumSamples uint64 } }
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &meta) != nil {
			continue // the database has just replaced the block
		}
		samples += meta.Stats.NumSamples
		_ = filepath.WalkDir(filepath.Dir(file), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				if info, err := e.Info(); err == nil {
					size += topology.Bytes(info.Size())
				}
			}
			return nil // as above
		})
	}
	return samples, size
}

func TestOpen_RefusesAFolderInUseAndBadOptions(t *testing.T) {
	o := telemetry.Options{Folder: t.TempDir()}
	d := open(t, o)
	defer closeDB(t, d)
	for _, bad := range []telemetry.Options{o, {}, {Folder: t.TempDir(), Retention: -1}, {Folder: "/proc/none"}} {
		if d, err := telemetry.Open(bad); err == nil {
			t.Errorf("%+v: opened", bad)
			closeDB(t, d)
		}
	}
}
