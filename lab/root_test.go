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
	forgetSaved(saved, 2, rootImage{filepath.Join(cache, "root-2.img"), "2"})
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
