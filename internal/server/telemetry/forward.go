package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

const (
	// late is how long after its time a sample may be added: a reported time that differs from the
	// server's clock by up to a minute is used as it is.
	late = time.Minute + 10*time.Second
	// window is the time whose samples are read at once.
	window = time.Minute
	// mostSamples bounds the samples of a request.
	mostSamples = 2000
	// sendTime limits a request.
	sendTime = 30 * time.Second
	// mostErrorBytes limits what is read of a receiver's answer.
	mostErrorBytes = 512
	// forwardedFile has the time until which samples were sent.
	forwardedFile = "forwarded.json"
	forwardedMode = 0o600
)

// Receiver is where samples are sent by Prometheus' remote write, version 1.
type Receiver struct {
	URL string
	// Token is sent as a bearer token; empty: none.
	Token  string
	Client *http.Client // nil: http.DefaultClient
}

// refusedError is an answer by which a receiver refuses samples for ever.
type refusedError struct{ cause error }

func (e *refusedError) Error() string { return e.cause.Error() }
func (e *refusedError) Unwrap() error { return e.cause }

// forwarded is until when samples were sent to a receiver.
type forwarded struct {
	URL   string    `json:"url"`
	Until time.Time `json:"until"`
}

// Forward sends all samples to a receiver, a minute or two after their time, until ctx ends. It reads them
// from the database and stores how far it is: after an outage of either side it sends what is missing,
// as far back as the database reaches. What was sent just before a crash is sent again; receivers ignore
// equal samples. Samples that the receiver refuses for ever are left out, and logged.
func (d *DB) Forward(ctx context.Context, to Receiver) error {
	if to.Client == nil {
		to.Client = http.DefaultClient
	}
	at, err := d.forwarded(to.URL)
	if err != nil {
		return err
	}
	failing := false
	for {
		err := d.forwardUntil(ctx, to, &at, d.options.Now().Add(-late))
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the program ends: what is left is sent after its next start
		case err != nil && !failing:
			d.options.Log.Warn("samples cannot be sent; retrying", "error", err)
		case err == nil && failing:
			d.options.Log.Info("samples are sent again", "until", at.Until)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(d.options.ForwardEvery):
		}
	}
}

// forwardUntil sends the samples of whole windows that end before a time.
func (d *DB) forwardUntil(ctx context.Context, to Receiver, at *forwarded, end time.Time) error {
	if oldest := d.options.Now().Add(-d.options.Retention); at.Until.Before(oldest) {
		at.Until = oldest
	}
	for next := at.Until.Add(window); !next.After(end); next = at.Until.Add(window) {
		if err := d.forwardWindow(ctx, to, at.Until, next); err != nil {
			return err
		}
		at.Until = next
		if err := d.storeForwarded(*at); err != nil {
			return err
		}
	}
	return nil
}

// forwardWindow sends the samples of [from, to).
func (d *DB) forwardWindow(ctx context.Context, receiver Receiver, from, to time.Time) (err error) {
	q, err := d.db.Querier(from.UnixMilli(), to.UnixMilli()-1)
	if err != nil {
		return fmt.Errorf("reading samples to send: %w", err)
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	all := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	var request prompb.WriteRequest
	samples := 0
	send := func() error {
		if samples == 0 {
			return nil
		}
		err := receiver.send(ctx, &request)
		var refused *refusedError
		if errors.As(err, &refused) {
			d.options.Log.Warn("samples were refused and are left out", "samples", samples, "error", err)
			err = nil
		}
		request.Timeseries, samples = nil, 0
		return err
	}
	var points chunkenc.Iterator
	for all.Next() {
		series := prompb.TimeSeries{Labels: prompb.FromLabels(all.At().Labels(), nil)}
		points = all.At().Iterator(points)
		for points.Next() == chunkenc.ValFloat {
			t, value := points.At()
			series.Samples = append(series.Samples, prompb.Sample{Timestamp: t, Value: value})
		}
		if err := points.Err(); err != nil {
			return fmt.Errorf("reading samples to send: %w", err)
		}
		if len(series.Samples) == 0 {
			continue
		}
		request.Timeseries, samples = append(request.Timeseries, series), samples+len(series.Samples)
		if samples >= mostSamples {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("reading samples to send: %w", err)
	}
	return send()
}

// send makes one request. The error wraps *refusedError if repeating it is of no use.
func (r *Receiver) send(ctx context.Context, request *prompb.WriteRequest) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sending samples by remote write: %w", err)
		}
	}()
	data, err := request.Marshal()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(snappy.Encode(nil, data)))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/x-protobuf")
	q.Header.Set("Content-Encoding", "snappy")
	q.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	if r.Token != "" {
		q.Header.Set("Authorization", "Bearer "+r.Token)
	}
	answer, err := r.Client.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	if answer.StatusCode/100 == 2 {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, mostErrorBytes)) // the status says enough
	err = fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	switch answer.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &refusedError{err} // about these samples; all else may be corrected at the receiver
	}
	return err
}

// forwarded reads until when samples were sent. A new receiver begins with the samples of now.
func (d *DB) forwarded(url string) (forwarded, error) {
	fresh := forwarded{url, d.options.Now()}
	data, err := os.ReadFile(filepath.Join(d.options.Folder, forwardedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, d.storeForwarded(fresh)
	}
	if err != nil {
		return fresh, fmt.Errorf("reading until when samples were sent: %w", err)
	}
	var at forwarded
	if json.Unmarshal(data, &at) != nil || at.URL != url || at.Until.After(fresh.Until) {
		return fresh, d.storeForwarded(fresh)
	}
	return at, nil
}

func (d *DB) storeForwarded(at forwarded) error {
	data, err := json.Marshal(at)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(d.options.Folder, forwardedFile), data, forwardedMode)
	}
	if err != nil {
		return fmt.Errorf("storing until when samples were sent: %w", err)
	}
	return nil
}
