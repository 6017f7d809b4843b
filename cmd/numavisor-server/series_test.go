package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestSeries_Flags(t *testing.T) {
	folder := t.TempDir()
	token, none := filepath.Join(folder, "token"), filepath.Join(folder, "none")
	if err := os.WriteFile(token, []byte("secret\n"), secretMode); err != nil {
		t.Fatal(err)
	}
	const to = "https://mimir:9009/api/v1/push"
	r, err := (&seriesOptions{forward: to, token: token}).receiver()
	if err != nil || r.URL != to || r.Token != "secret" {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := (&seriesOptions{}).receiver(); err != nil || r.URL != "" {
		t.Errorf("got %+v, %v", r, err)
	}
	var usage usageError
	for _, bad := range []seriesOptions{{forward: "mimir:9009"}, {forward: "https://ann:pw@mimir/push"},
		{forward: to, token: none}, {forward: to, roots: none}, {forward: to, roots: token}} {
		if _, err := bad.receiver(); !errors.As(err, &usage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, bad := range []seriesOptions{{days: 0, size: "8G"}, {days: 30, size: "much"}, {days: 30, size: "1K"}} {
		if _, err := bad.open(folder, slog.New(slog.DiscardHandler)); !errors.As(err, &usage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	series, err := (&seriesOptions{days: 7, size: "1G"}).open(folder, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := series.Close(); err != nil {
		t.Error(err)
	}
}
