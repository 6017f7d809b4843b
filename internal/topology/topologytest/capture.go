package topologytest

import (
	"archive/tar"
	"compress/bzip2"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Captures returns the packed sysfs trees of testdata/hwloc.
func Captures(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(folder), "hwloc", "*.tar.bz2"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no *.tar.bz2 in testdata/hwloc: %v", err)
	}
	return paths
}

// Unpack unpacks a capture and returns the folder that holds its sys and proc.
func Unpack(t testing.TB, capture string) string {
	t.Helper()
	f, err := os.Open(capture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	archive := tar.NewReader(bzip2.NewReader(f))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpackOne(dir, h, archive)
		}
		if err != nil {
			t.Fatalf("%s: %v", capture, err)
		}
	}
	roots, err := filepath.Glob(filepath.Join(dir, "*", "sys"))
	if err != nil || len(roots) != 1 {
		t.Fatalf("%s: %d folders with sys: %v", capture, len(roots), err)
	}
	return filepath.Dir(roots[0])
}

func unpackOne(dir string, h *tar.Header, content io.Reader) error {
	if !filepath.IsLocal(h.Name) {
		return errors.New("the archive names a path outside its folder: " + h.Name)
	}
	path := filepath.Join(dir, h.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, path)
	case tar.TypeReg:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	}
	return errors.New("unexpected entry " + h.Name)
}

// Missing skips a test that needs something this machine lacks. It fails the
// test under CI=true, where everything that 'make packages' installs is
// present.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
