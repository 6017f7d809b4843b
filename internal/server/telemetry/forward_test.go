package telemetry_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/numavisor/numavisor/internal/server/telemetry"
)

// receiver accepts remote writes as Prometheus does.
type receiver struct {
	t        *testing.T
	mu       sync.Mutex
	answers  []int             // of the next requests; then 204
	values   map[int64]float64 // of numavisor_fleet_host_up, by time
	series   map[string]bool   // names of metrics
	requests int
	token    string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	r.token = q.Header.Get("Authorization")
	status := http.StatusNoContent
	if len(r.answers) > 0 {
		status, r.answers = r.answers[0], r.answers[1:]
	}
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		return
	}
	packed, err := io.ReadAll(q.Body)
	if err != nil {
		r.t.Error(err)
		return
	}
	data, err := snappy.Decode(nil, packed)
	if err != nil {
		r.t.Error(err)
		return
	}
	var message prompb.WriteRequest
	if err := message.Unmarshal(data); err != nil {
		r.t.Error(err)
		return
	}
	for _, series := range message.Timeseries {
		name := series.Labels[0].Value // the first one: __name__
		r.series[name] = true
		for _, s := range series.Samples {
			if name == "numavisor_fleet_host_up" {
				r.values[s.Timestamp/1000] = s.Value
			}
		}
	}
}

// wait waits until a condition holds.
func (r *receiver) wait(what string, holds func() bool) {
	r.t.Helper()
	for range 3000 {
		r.mu.Lock()
		done := holds()
		r.mu.Unlock()
		if done {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("%s: the receiver has %v of %d requests", what, r.values, r.requests)
}

// forward forwards until the function that it returns is called.
func forward(t *testing.T, d *telemetry.DB, to telemetry.Receiver) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Forward(ctx, to) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func newReceiver(t *testing.T, answers ...int) (*receiver, telemetry.Receiver) {
	t.Helper()
	r := &receiver{t: t, answers: answers, values: map[int64]float64{}, series: map[string]bool{}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, telemetry.Receiver{URL: s.URL + "/api/v1/write", Token: "secret", Client: s.Client()}
}

// What a receiver misses during its outage, and while the server is stopped, it gets later.
func TestForward_SendsWhatWasMissed(t *testing.T) {
	c := newClock()
	o := telemetry.Options{Folder: t.TempDir(), Now: c.Now, ForwardEvery: time.Millisecond}
	d := open(t, o)
	r, to := newReceiver(t, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusUnauthorized)
	forward(t, d, to)() // it has stored that it begins now
	const first, minutes = 1795348800, 6
	for range minutes / 2 {
		report(t, d, "h", loads(c.Now(), 1))
		c.add(time.Minute)
	}
	stop := forward(t, d, to)
	r.wait("after refusals", func() bool { return len(r.values) >= 1 && r.requests > 3 })
	stop()
	closeDB(t, d)
	d = open(t, o)
	defer closeDB(t, d)
	for range minutes / 2 {
		report(t, d, "h", loads(c.Now(), 1))
		c.add(time.Minute)
	}
	c.add(2 * time.Minute)
	defer forward(t, d, to)()
	r.wait("after a restart", func() bool { return len(r.values) == minutes })
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range int64(minutes) {
		if r.values[first+60*i] != 1 {
			t.Errorf("minute %d is missing: %v", i, r.values)
		}
	}
	if len(r.series) != 8 || r.token != "Bearer secret" {
		t.Errorf("metrics %v, token %q", r.series, r.token)
	}
}

// Samples that a receiver refuses for ever do not hold up the others.
func TestForward_LeavesOutWhatIsRefused(t *testing.T) {
	c := newClock()
	d := open(t, telemetry.Options{Folder: t.TempDir(), Now: c.Now, ForwardEvery: time.Millisecond})
	defer closeDB(t, d)
	r, to := newReceiver(t, http.StatusBadRequest)
	forward(t, d, to)()
	for range 4 {
		report(t, d, "h", loads(c.Now(), 1))
		c.add(time.Minute)
	}
	c.add(2 * time.Minute)
	defer forward(t, d, to)()
	r.wait("after the first minute", func() bool { return len(r.values) == 3 && r.requests == 4 })
}
