package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFindServer_InPath(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	if path, err := findServer(); err == nil {
		t.Fatalf("found %s", path)
	}
	want := filepath.Join(folder, serverProgram)
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := findServer(); err != nil || path != want {
		t.Errorf("got %s, %v", path, err)
	}
}
