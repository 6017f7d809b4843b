package metrics

import (
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// Build identifies the running program.
type Build struct{ Version, Revision string }

// Collector makes the metrics of a daemon at each scrape. It is safe for
// concurrent use if its status function is.
type Collector struct {
	status func() (status.Status, error)
	build  Build
}

// New returns the collector for a status function. A scrape fails if that
// function fails.
func New(status func() (status.Status, error), build Build) *Collector {
	return &Collector{status, build}
}

// Describe sends every metric that Collect may send.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range all {
		to <- d.desc
	}
}

// Collect sends the metrics of the current status.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	s, err := c.status()
	if err != nil {
		to <- prometheus.NewInvalidMetric(buildInfo.desc, err)
		return
	}
	e := &exposition{to: to, sent: map[string]bool{}}
	e.send(buildInfo, 1, c.build.Version, c.build.Revision, runtime.Version())
	e.host(&s)
	e.nodes(&s)
	e.guests(&s)
	e.moves(&s)
	e.alarms(&s)
	e.daemon(&s)
}

// exposition sends the metrics of one scrape.
type exposition struct {
	to   chan<- prometheus.Metric
	sent map[string]bool
}

// send sends one value. A series sent twice would fail the whole scrape: the
// first value counts. So would a label value that is not UTF-8.
func (e *exposition) send(d *described, value float64, labels ...string) {
	if e.first(d, labels) {
		e.to <- prometheus.MustNewConstMetric(d.desc, d.Type, value, labels...)
	}
}

// first reports whether a series has not been sent yet. It makes its labels UTF-8.
func (e *exposition) first(d *described, labels []string) bool {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
	}
	series := d.Name + "\xff" + strings.Join(labels, "\xff")
	known := e.sent[series]
	e.sent[series] = true
	return !known
}

// sendTimes sends a histogram.
func (e *exposition) sendTimes(d *described, times *inventory.HandoverTimes, labels ...string) {
	if !e.first(d, labels) {
		return
	}
	upTo := make(map[float64]uint64, len(d.Bounds))
	var below uint64
	for i, bound := range d.Bounds {
		if i < len(times.Counts) {
			below += times.Counts[i]
		}
		upTo[bound] = below
	}
	e.to <- prometheus.MustNewConstHistogram(d.desc, times.Count(), times.Sum.Seconds(), upTo, labels...)
}

// sendTime sends a time unless it is zero.
func (e *exposition) sendTime(d *described, t time.Time) {
	if !t.IsZero() {
		e.send(d, float64(t.UnixNano())/1e9)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
