package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Bounds of a request: of its body, of the points of each series in an answer (Prometheus'
// own bound), and of the series that a request about series returns.
const (
	maxBody   = 1 << 20
	maxPoints = 11_000
	maxFound  = 50_000
)

// answer is the envelope of every answer of Prometheus' interface.
type answer struct {
	Status    string   `json:"status"`
	Data      any      `json:"data,omitempty"`
	ErrorType string   `json:"errorType,omitempty"`
	Error     string   `json:"error,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

// requestError is an error with the kind and the status that Prometheus gives it.
type requestError struct {
	kind   string
	status int
	cause  error
}

func (e *requestError) Error() string { return e.cause.Error() }
func (e *requestError) Unwrap() error { return e.cause }

func badData(format string, arguments ...any) error {
	return &requestError{"bad_data", http.StatusBadRequest, fmt.Errorf(format, arguments...)}
}

// Handler serves the part of Prometheus' HTTP interface that Grafana uses, below /api/v1/. It
// only reads. It does not authenticate: the server does that before.
func (d *DB) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, f func(*http.Request) (any, annotations.Annotations, error)) {
		h := func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			if err := r.ParseForm(); err != nil {
				reply(w, nil, nil, badData("the form: %w", err))
				return
			}
			data, warnings, err := f(r)
			reply(w, data, warnings, err)
		}
		mux.HandleFunc("GET "+path, h)
		mux.HandleFunc("POST "+path, h)
	}
	handle("/api/v1/query", d.query)
	handle("/api/v1/query_range", d.queryRange)
	handle("/api/v1/series", d.series)
	handle("/api/v1/labels", d.labelNames)
	handle("/api/v1/label/{name}/values", d.labelValues)
	handle("/api/v1/metadata", metadata)
	handle("/api/v1/status/buildinfo", buildInfo)
	return mux
}

func reply(w http.ResponseWriter, data any, warnings annotations.Annotations, err error) {
	status, a := http.StatusOK, answer{Status: "success", Data: data}
	for _, warning := range warnings.AsErrors() {
		a.Warnings = append(a.Warnings, warning.Error())
	}
	if err != nil {
		e := &requestError{"internal", http.StatusInternalServerError, err}
		if !errors.As(err, &e) && errors.Is(err, context.DeadlineExceeded) {
			e = &requestError{"timeout", http.StatusServiceUnavailable, err}
		}
		status, a = e.status, answer{Status: "error", ErrorType: e.kind, Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client has gone
}

func (d *DB) query(r *http.Request) (any, annotations.Annotations, error) {
	at, err := moment(r, "time", d.options.Now())
	if err != nil {
		return nil, nil, err
	}
	return d.run(r, func(ctx context.Context) (promql.Query, error) {
		return d.engine.NewInstantQuery(ctx, d.db, nil, r.Form.Get("query"), at)
	})
}

func (d *DB) queryRange(r *http.Request) (any, annotations.Annotations, error) {
	start, err := moment(r, "start", time.Time{})
	end, err2 := moment(r, "end", time.Time{})
	step, err3 := duration(r.Form.Get("step"))
	switch {
	case errors.Join(err, err2, err3) != nil:
		return nil, nil, errors.Join(err, err2, err3)
	case start.IsZero() || end.Before(start):
		return nil, nil, badData("start and end are required, and end is not before start")
	case step <= 0:
		return nil, nil, badData("step must be more than 0")
	case end.Sub(start)/step > maxPoints:
		return nil, nil, badData("more than %d points for each series: choose a larger step", maxPoints)
	}
	return d.run(r, func(ctx context.Context) (promql.Query, error) {
		return d.engine.NewRangeQuery(ctx, d.db, nil, r.Form.Get("query"), start, end, step)
	})
}

// run makes and executes a query when there is a slot for it.
func (d *DB) run(
	r *http.Request, prepare func(context.Context) (promql.Query, error),
) (any, annotations.Annotations, error) {
	ctx := r.Context()
	if text := r.Form.Get("timeout"); text != "" {
		limit, err := duration(text)
		if err != nil {
			return nil, nil, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return nil, nil, &requestError{"timeout", http.StatusServiceUnavailable, errors.New("too many queries run")}
	}
	q, err := prepare(ctx)
	if err != nil {
		return nil, nil, badData("%w", err)
	}
	defer q.Close()
	result := q.Exec(ctx)
	switch err := result.Err; {
	case err == nil:
		return map[string]any{"resultType": result.Value.Type(), "result": value(result.Value)}, result.Warnings, nil
	case errors.As(err, new(promql.ErrQueryTimeout)), errors.As(err, new(promql.ErrQueryCanceled)):
		return nil, nil, &requestError{"timeout", http.StatusServiceUnavailable, err}
	case errors.As(err, new(promql.ErrStorage)):
		return nil, nil, err
	default: // such as too many samples
		return nil, nil, &requestError{"execution", http.StatusUnprocessableEntity, err}
	}
}

// sample is a time and a value, as the interface writes them: [seconds, "value"].
func sample(ms int64, v float64) [2]any {
	return [2]any{float64(ms) / 1000, strconv.FormatFloat(v, 'f', -1, 64)}
}

// value is the result of a query as the interface writes it. There are no histograms.
func value(v any) any {
	switch v := v.(type) {
	case promql.Vector:
		all := make([]any, 0, len(v))
		for _, s := range v {
			all = append(all, map[string]any{"metric": s.Metric, "value": sample(s.T, s.F)})
		}
		return all
	case promql.Matrix:
		all := make([]any, 0, len(v))
		for _, s := range v {
			points := make([]any, 0, len(s.Floats))
			for _, p := range s.Floats {
				points = append(points, sample(p.T, p.F))
			}
			all = append(all, map[string]any{"metric": s.Metric, "values": points})
		}
		return all
	case promql.Scalar:
		return sample(v.T, v.V)
	case promql.String:
		return [2]any{float64(v.T) / 1000, v.V}
	}
	return nil
}

// selected is what a request about series, labels and values asks for.
type selected struct {
	storage.Querier
	sets  [][]*labels.Matcher
	hints storage.LabelHints
	limit int
	start int64 // ms
	end   int64
}

func (d *DB) selection(r *http.Request) (selected, error) {
	start, err := moment(r, "start", time.UnixMilli(0))
	end, err2 := moment(r, "end", d.options.Now())
	if err := errors.Join(err, err2); err != nil {
		return selected{}, err
	}
	var s selected
	s.sets, err = d.parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return selected{}, badData("match[]: %w", err)
	}
	s.limit = maxFound
	if text := r.Form.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 0 {
			return selected{}, badData("limit is %q: a number is needed", text)
		}
		if limit > 0 {
			s.limit = min(limit, maxFound)
		}
	}
	s.hints.Limit = s.limit
	s.start, s.end = start.UnixMilli(), end.UnixMilli()
	s.Querier, err = d.db.Querier(s.start, s.end)
	return s, err
}

func (d *DB) series(r *http.Request) (any, annotations.Annotations, error) {
	if len(r.Form["match[]"]) == 0 {
		return nil, nil, badData("match[] is required")
	}
	s, err := d.selection(r)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close() //nolint:errcheck // only read
	found, seen := []labels.Labels{}, map[string]bool{}
	var warnings annotations.Annotations
	hints := &storage.SelectHints{Start: s.start, End: s.end, Func: "series", Limit: s.limit}
	for _, matchers := range s.sets {
		set := s.Select(r.Context(), true, hints, matchers...)
		for set.Next() && len(found) < s.limit {
			if l := set.At().Labels(); !seen[l.String()] {
				seen[l.String()] = true
				found = append(found, l)
			}
		}
		if err := set.Err(); err != nil {
			return nil, nil, err
		}
		warnings.Merge(set.Warnings())
	}
	return found, warnings, nil
}

func (d *DB) labelNames(r *http.Request) (any, annotations.Annotations, error) {
	return d.names(r, func(s selected, matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return s.LabelNames(r.Context(), &s.hints, matchers...)
	})
}

func (d *DB) labelValues(r *http.Request) (any, annotations.Annotations, error) {
	name := r.PathValue("name")
	if !model.UTF8Validation.IsValidLabelName(name) {
		return nil, nil, badData("%q is no name of a label", name)
	}
	return d.names(r, func(s selected, matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return s.LabelValues(r.Context(), name, &s.hints, matchers...)
	})
}

// names joins what a function finds for each of the selectors, ascending.
func (d *DB) names(
	r *http.Request, find func(selected, []*labels.Matcher) ([]string, annotations.Annotations, error),
) (any, annotations.Annotations, error) {
	s, err := d.selection(r)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close() //nolint:errcheck // only read
	if len(s.sets) == 0 {
		s.sets = [][]*labels.Matcher{nil}
	}
	found := []string{}
	var warnings annotations.Annotations
	for _, matchers := range s.sets {
		names, more, err := find(s, matchers)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, names...)
		warnings.Merge(more)
	}
	slices.Sort(found)
	found = slices.Compact(found)
	return found[:min(len(found), s.limit)], warnings, nil
}

func metadata(r *http.Request) (any, annotations.Annotations, error) {
	all := map[string][]map[string]string{}
	for _, m := range described() {
		if only := r.Form.Get("metric"); only == "" || only == m.name {
			all[m.name] = []map[string]string{{"type": "gauge", "help": m.help, "unit": ""}}
		}
	}
	return all, nil, nil
}

// buildInfo tells Grafana which dialect it may use: that of the library.
func buildInfo(*http.Request) (any, annotations.Annotations, error) {
	return map[string]any{"version": "3.15.0", "application": "Numavisor", "features": map[string]string{}}, nil, nil
}

// moment reads a time: seconds since 1970, or RFC 3339.
func moment(r *http.Request, field string, otherwise time.Time) (time.Time, error) {
	text := r.Form.Get(field)
	if text == "" {
		return otherwise, nil
	}
	if s, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(s) < 1e11 {
		return time.UnixMilli(int64(math.Round(s * 1000))).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, badData("%s is %q: seconds since 1970 or RFC 3339 are needed", field, text)
	}
	return t, nil
}

// duration reads seconds, or a duration such as 5m.
func duration(text string) (time.Duration, error) {
	if s, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(s) < 1e9 {
		return time.Duration(s * float64(time.Second)), nil
	}
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, badData("%q is no duration, such as 15 or 5m", text)
	}
	return time.Duration(d), nil
}
