// Package telemetry keeps what a fleet's hosts report about their loads: of nodes and VMs,
// placements and alarms. It is a time series database in a folder, bounded in time and size,
// and is queried in PromQL through Prometheus' HTTP interface. Nothing here goes through
// the store of records: samples that are lost are lost, and no decision reads them.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/topology"
)

// Options configure a database. Folder is required.
type Options struct {
	Folder string
	// Retention is how long samples stay. 0: 30 days.
	Retention time.Duration
	// MaxSize bounds the files; the oldest samples go first. 0: 8 GiB. See BytesPerSeries.
	MaxSize topology.Bytes
	// Every is the interval between samples of a host; reports between them are
	// left out. 0: a minute.
	Every time.Duration
	// MaxSeries bounds the series in memory, which are about 1 KiB each. Beyond it, VMs get no
	// new series; beyond twice the number, nothing does. 0: 150,000.
	MaxSeries int64
	// ForwardEvery is the interval at which Forward looks for samples to send, and retries. 0: 15 s.
	ForwardEvery time.Duration
	Log          *slog.Logger     // nil: nothing is logged
	Now          func() time.Time // nil: time.Now
}

// BytesPerSeries is what the files of a series take at most for 30 days at the default interval of a minute, if its
// value changes all the time.
const BytesPerSeries = 256 * topology.KiB

// DB is the database. It is safe for concurrent use.
type DB struct {
	options Options
	db      *tsdb.DB
	engine  *promql.Engine
	parser  parser.Parser
	slots   chan struct{} // one for each query that may run at once

	limit *limit

	mu   sync.Mutex
	last map[string]int64 // the time of the last sample of a host, in ms
}

func (o Options) withDefaults() Options {
	if o.Retention == 0 {
		o.Retention = 30 * 24 * time.Hour
	}
	if o.MaxSize == 0 {
		o.MaxSize = 8 * topology.GiB
	}
	if o.Every == 0 {
		o.Every = time.Minute
	}
	if o.MaxSeries == 0 {
		o.MaxSeries = 150_000
	}
	if o.ForwardEvery == 0 {
		o.ForwardEvery = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Open opens the database of a folder, or makes it. Callers close it.
func Open(o Options) (*DB, error) {
	if o.Folder == "" || o.Retention < 0 || o.Every < 0 {
		return nil, errors.New("telemetry needs a folder, and times that are not negative")
	}
	o = o.withDefaults()
	settings := tsdb.DefaultOptions()
	settings.RetentionDuration = o.Retention.Milliseconds()
	settings.MaxBytes = int64(min(o.MaxSize, 1<<62)) //nolint:gosec // bounded
	// Blocks of at most a tenth of the time: they are deleted whole.
	settings.MaxBlockDuration = max(settings.MinBlockDuration, settings.RetentionDuration/10)
	settings.StripeSize = 1 << 12
	bound := &limit{max: o.MaxSeries}
	settings.SeriesLifecycleCallback = bound
	db, err := tsdb.Open(o.Folder, slog.New(quiet{o.Log.Handler()}).With("source", "telemetry"), nil, settings, nil)
	if err != nil {
		return nil, fmt.Errorf("open the telemetry in %s: %w", o.Folder, err)
	}
	grammar := parser.NewParser(parser.Options{})
	return &DB{
		options: o, db: db, parser: grammar, slots: make(chan struct{}, 4),
		engine: promql.NewEngine(promql.EngineOpts{
			Logger: o.Log, MaxSamples: 5_000_000, Timeout: 30 * time.Second, Parser: grammar,
			EnableAtModifier: true, EnableNegativeOffset: true,
			NoStepSubqueryIntervalFn: func(int64) int64 { return o.Every.Milliseconds() },
		}),
		limit: bound,
		last:  map[string]int64{},
	}, nil
}

// Close writes what is in memory and closes the files.
func (d *DB) Close() error { return errors.Join(d.engine.Close(), d.db.Close()) }

// Size is what a database contains.
type Size struct {
	Files   topology.Bytes // bounded by MaxSize
	Series  uint64         // in memory
	Refused uint64         // samples for which there was no series, because of MaxSeries
}

// Size returns what the database contains.
func (d *DB) Size() Size {
	size := d.db.Head().Size()
	for _, b := range d.db.Blocks() {
		size += b.Size()
	}
	return Size{
		Files:  topology.Bytes(max(size, 0)), //nolint:gosec // not negative
		Series: d.db.Head().NumSeries(), Refused: d.limit.refused.Load(),
	}
}

// Report adds the loads of a host, which are complete: the changes of one message are merged into
// what the messages before it said. placed has the nodes of the fleet's VMs on the host, by their names. Reports that
// are repeated, older than another or too close to it are left out. A host whose clock differs by more than a minute
// gets the server's time. The error is ErrAhead if the clock of this server was ahead for some time.
func (d *DB) Report(ctx context.Context, host string, l fleet.Loads, placed map[string]topology.NodeSet) error {
	at := d.timeOf(l.Taken)
	if !d.due(host, at, true) {
		return nil
	}
	a := d.db.Appender(ctx)
	b := batch{to: a, at: at.UnixMilli()}
	b.host(host, l)
	b.placements(host, placed)
	if b.err == nil && b.added == 0 {
		b.err = b.old
	}
	if b.err != nil {
		return errors.Join(fmt.Errorf("telemetry of %s: %w", host, b.err), a.Rollback())
	}
	if err := a.Commit(); err != nil {
		return fmt.Errorf("telemetry of %s: %w", host, err)
	}
	return nil
}

// timeOf returns the time of a sample that a host took at a time by its own clock.
func (d *DB) timeOf(taken time.Time) time.Time {
	if now := d.options.Now(); taken.After(now) || now.Sub(taken) > time.Minute {
		return now
	}
	return taken
}

// Due reports whether Report would add a sample that a host took at a time: most messages of a host are too close to
// the one before.
func (d *DB) Due(host string, taken time.Time) bool { return d.due(host, d.timeOf(taken), false) }

// due reports whether the telemetry needs a new sample of a host at a time. With take, a sample that
// it needs counts as added at that time.
func (d *DB) due(host string, at time.Time, take bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, seen := d.last[host]
	ahead := last > d.options.Now().Add(time.Minute).UnixMilli() // the clock was set back
	if seen && !ahead && at.UnixMilli() < last+d.options.Every.Milliseconds()*9/10 {
		return false
	}
	if take {
		d.last[host] = at.UnixMilli()
	}
	return true
}

// ErrAhead means that the database has samples of a time that is still to come, because this
// machine's clock was ahead. It takes new ones when that time is reached, or after its
// folder was removed.
var ErrAhead = errors.New("the telemetry has samples of the future: the clock of this machine was ahead")

// limit bounds the number of series, as the database's callback.
type limit struct {
	max     int64
	series  atomic.Int64
	refused atomic.Uint64
}

var errFull = errors.New("too many series")

// PreCreation refuses a series.
func (l *limit) PreCreation(of labels.Labels) error {
	n := l.series.Load()
	if n >= 2*l.max || n >= l.max && of.Has("vm") {
		l.refused.Add(1)
		return errFull
	}
	return nil
}

// PostCreation counts a series.
func (l *limit) PostCreation(labels.Labels) { l.series.Add(1) }

// PostDeletion counts the series that have no samples in memory any more.
func (l *limit) PostDeletion(gone map[chunks.HeadSeriesRef]labels.Labels) {
	l.series.Add(-int64(len(gone)))
}

// quiet passes a log on, with what the database informs about as debug messages.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, demoted(level))
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demoted(r.Level)
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attributes []slog.Attr) slog.Handler {
	return quiet{q.Handler.WithAttrs(attributes)}
}

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

func demoted(level slog.Level) slog.Level {
	if level == slog.LevelInfo {
		return slog.LevelDebug
	}
	return level
}
