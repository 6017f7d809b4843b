package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

func TestRecoverAdmin_OnlyWhileTheServerIsStopped(t *testing.T) {
	folder := newFleet(t)
	stop := runServer(t, folder)
	if _, err := recoverAdmin(t.Context(), folder, "admin"); !errors.Is(err, errServerRuns) {
		t.Errorf("while the server runs: %v", err)
	}
	stop()
	status, out := command("recover-admin", "--data", folder)
	token := regexp.MustCompile(`nvu_\S+`).FindString(out)
	if status != exitDone || token == "" {
		t.Fatalf("status %d: %s", status, out)
	}
	if status, out := command("recover-admin", "--data", folder, "--user", "ann"); status != exitDone {
		t.Errorf("a new user: status %d: %s", status, out)
	}
	if status, out := command("recover-admin", "--data", folder, "--user", "a b"); status != exitFailed {
		t.Errorf("no name: status %d: %s", status, out)
	}
	if _, err := recoverAdmin(t.Context(), filepath.Join(folder, "none"), "admin"); err == nil ||
		errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no fleet: %v", err)
	}
	conf, err := readConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := readCA(folder)
	if err != nil {
		t.Fatal(err)
	}
	records, err := openStore(t.Context(), folder, conf, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	}()
	r, err := records.Get(t.Context(), store.Users+"admin")
	if err != nil || !strings.Contains(string(r.Value), auth.Hash(token)) || strings.Contains(string(r.Value), token) {
		t.Errorf("the user's record: %s, %v", r.Value, err)
	}
	all, _, err := records.List(t.Context(), store.Audit)
	if err != nil || len(all) != 2 {
		t.Fatalf("the audit has %d entries, %v", len(all), err)
	}
	var e struct{ User, Operation, Name string }
	if err := json.Unmarshal(all[0].Value, &e); err != nil || e.User != "recover-admin" || e.Name != "admin" {
		t.Errorf("got %+v, %v", e, err)
	}
}
