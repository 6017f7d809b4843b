package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestCheck_FindsWholeWordsOnly(t *testing.T) {
	for text, want := range map[string][]string{
		"numad is Told again":          {`docs/a.md:1: "Told": name who reports or shows it`},
		"read it\nanew":                {`docs/a.md:2: "anew": again`},
		"the memory lies on node 1":    {`docs/a.md:1: "memory lies": is on, are on`},
		"renewed, unkept, besides":     nil,
		"an untold number of shallots": nil,
	} {
		got, err := check(fstest.MapFS{"docs/a.md": {Data: []byte(text)}}, []string{"docs"}, nil)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q (%v), want %q", text, got, err, want)
		}
	}
}

func TestCheck_ExceptionsAllowTheirLinesOnly(t *testing.T) {
	files := fstest.MapFS{"docs/a.md": {Data: []byte("kept (as the kernel has it)\nkept\n")}}
	got, err := check(files, []string{"docs"}, []exception{
		{"docs/a.md", "as the kernel has it", "a quote"},
		{"docs/a.md", "not there", "a quote"},
	})
	want := []string{
		`docs/a.md:2: "kept": stored, preserved, still there; of a promise: met`,
		`docs/a.md: the exception for "not there" is not needed: remove it`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

func TestCheck_ReadsTextsOnly(t *testing.T) {
	files := fstest.MapFS{"docs/a.svg": {Data: []byte("kept")}, "docs/deep/b.yaml": {Data: []byte("kept")}}
	got, err := check(files, []string{"docs"}, nil)
	if err != nil || len(got) != 1 {
		t.Errorf("%q (%v), want one finding in b.yaml", got, err)
	}
	if _, err := check(files, []string{"nowhere"}, nil); err == nil {
		t.Error("a place that does not exist was accepted")
	}
}
