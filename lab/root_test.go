package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestClosure_FollowsDependenciesAlternativesAndProvides(t *testing.T) {
	installed := parsePackages("ii \tqemu\t1\t\tlibc6 (>= 2.3)\tlibx | liby, seabios (>= 1), virtual:any\n" +
		"ii \tlibc6\t2\t\t\t\nii \tliby\t3\t\t\tqemu\nii \treal\t4\tvirtual (= 1), other\t\t\n" +
		"rc \tseabios\t5\t\t\t\nii \tunused\t6\t\t\tlibc6\nbroken line\n")
	var got []string
	for _, p := range closure(installed, []string{"qemu", "not-installed"}) {
		got = append(got, p.name+"="+p.version)
	}
	if diff := cmp.Diff([]string{"libc6=2", "liby=3", "qemu=1", "real=4"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestForgetSaved_LeavesTheNewestAndThePresentRoot(t *testing.T) {
	cache := t.TempDir()
	saved := filepath.Join(cache, "saved")
	for i, name := range []string{"old", "newer", "newest", "new-interrupted"} {
		folder := filepath.Join(saved, name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(folder, at, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"root-1.img", "root-2.img"} {
		if err := os.WriteFile(filepath.Join(cache, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	forgetSaved(saved, 2, rootImage{filepath.Join(cache, "root-2.img")})
	var left []string
	for _, pattern := range []string{saved + "/*", cache + "/*.img"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			left = append(left, filepath.Base(p))
		}
	}
	if diff := cmp.Diff([]string{"newer", "newest", "root-2.img"}, left); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// An image that was removed and made again from the same packages has other blocks than those that the
// saved memory knows.
func TestSavedKey_ChangesWithTheRootImage(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shape, err := FindShape("square4")
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Shape: shape, QEMU: file("qemu", "#!/bin/sh\necho 'QEMU emulator version 7.2.0'\n")}
	k, image := kernel{image: file("vmlinuz", "")}, rootImage{path: file("root-1.img", "x")}
	name := func() string {
		t.Helper()
		key, err := savedKey(t.Context(), options, k, image)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	first := name()
	if again := name(); again != first {
		t.Errorf("%s, then %s: nothing has changed", first, again)
	}
	if err := os.Chtimes(image.path, time.Time{}, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	if again := name(); again == first {
		t.Errorf("%s again, although the image was made again", first)
	}
}
