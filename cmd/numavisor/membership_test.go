package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadJoinFile(t *testing.T) {
	for _, c := range []struct{ name, text, fault string }{
		{"as init writes it", `{"address": "s:8443", "token": "nvj_x", "fingerprint": "sha256:ab",
			"expires": "2026-01-01T00:00:00Z"}`, ""},
		{"no document", "nvj_x\n", "invalid character"},
		{"without a token", `{"address": "s:8443", "fingerprint": "sha256:ab"}`, "is missing"},
		{"without an address", `{"token": "nvj_x", "fingerprint": "sha256:ab"}`, "is missing"},
	} {
		path := filepath.Join(t.TempDir(), "join.json")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := membership{file: path}
		err := m.readJoinFile()
		var usage usageError
		switch {
		case c.fault == "" && (err != nil || m.server != "s:8443" || m.token != "nvj_x" || m.fingerprint != "sha256:ab"):
			t.Errorf("%s: %+v, %v", c.name, m, err)
		case c.fault != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.fault) ||
			!strings.Contains(err.Error(), path)):
			t.Errorf("%s: %v", c.name, err)
		}
	}
	m := membership{file: "/nonexistent/join.json"}
	if err := m.readJoinFile(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}
