package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/server/telemetry"
	"github.com/numavisor/numavisor/internal/topology"
)

// seriesOptions are the flags of the time series.
type seriesOptions struct {
	days                  int
	size                  string
	forward, token, roots string
}

const day = 24 * time.Hour

func (o *seriesOptions) flags(f *pflag.FlagSet) {
	f.IntVar(&o.days, "series-days", 30, "days for which loads are stored")
	f.StringVar(&o.size, "series-size", "8G", "most space of the files with loads; the oldest loads go first")
	f.StringVar(&o.forward, "remote-write", "",
		"also send all loads to this URL by Prometheus' remote write, for example https://mimir:9009/api/v1/push")
	f.StringVar(&o.token, "remote-write-token", "", "file with the bearer token for --remote-write")
	f.StringVar(&o.roots, "remote-write-ca", "",
		"file with the CA of --remote-write, PEM (default: those of this machine)")
}

// open opens the time series of a data folder.
func (o *seriesOptions) open(folder string, log *slog.Logger) (*telemetry.DB, error) {
	size, err := topology.ParseBytes(o.size)
	if err != nil {
		return nil, usageError{fmt.Errorf("--series-size: %w", err)}
	}
	if o.days < 1 || o.days > 3650 || size < topology.MiB {
		return nil, usageError{fmt.Errorf(
			"--series-days %d --series-size %s: allowed are 1 to 3650 days, and 1M and more", o.days, o.size)}
	}
	series, err := telemetry.Open(telemetry.Options{Folder: filepath.Join(folder, seriesFolder), Log: log,
		Retention: time.Duration(o.days) * day, MaxSize: size})
	if err != nil {
		return nil, fmt.Errorf("opening the time series in %s: %w", folder, err)
	}
	return series, nil
}

// receiver returns where samples are sent; an empty URL: nowhere.
func (o *seriesOptions) receiver() (telemetry.Receiver, error) {
	if o.forward == "" {
		return telemetry.Receiver{}, nil
	}
	u, err := url.Parse(o.forward)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return telemetry.Receiver{}, usageError{fmt.Errorf(
			"--remote-write %.100q: give an http or https URL without a password", o.forward)}
	}
	r := telemetry.Receiver{URL: o.forward}
	if o.token != "" {
		text, err := os.ReadFile(o.token)
		if err != nil {
			return r, usageError{fmt.Errorf("--remote-write-token: %w", err)}
		}
		r.Token = strings.TrimSpace(string(text))
	}
	if o.roots != "" {
		text, err := os.ReadFile(o.roots)
		if err != nil {
			return r, usageError{fmt.Errorf("--remote-write-ca: %w", err)}
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return r, usageError{fmt.Errorf("--remote-write-ca: %s has no certificate", o.roots)}
		}
		transport := &http.Transport{Proxy: http.ProxyFromEnvironment,
			TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
		r.Client = &http.Client{Transport: transport}
	}
	return r, nil
}

// send sends all samples to the receiver, if there is one, until ctx ends.
func (o *seriesOptions) send(ctx context.Context, series *telemetry.DB) error {
	to, err := o.receiver()
	if err != nil || to.URL == "" {
		return err
	}
	return series.Forward(ctx, to)
}
