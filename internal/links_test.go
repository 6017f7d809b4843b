package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor   = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`)
	linkTarget = regexp.MustCompile(`\]\([^)]*\)|\[`)
)

// A link from one page to another leads to a file, and to a heading of it.
func TestPages_HaveNoBrokenLinks(t *testing.T) {
	links := 0
	err := filepath.WalkDir("..", func(page string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(found[1], "#")
			target := filepath.Join(filepath.Dir(page), file)
			if file == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: no such file", page, found[1])
			} else if anchor != "" && !anchors(t, target)[anchor] {
				t.Errorf("%s: link to %s: no such heading", page, found[1])
			}
		}
		return nil
	})
	if err != nil || links == 0 {
		t.Errorf("%d links checked: %v", links, err)
	}
}

// anchors are the names that a page's headings have in links.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			title = noAnchor.ReplaceAllString(linkTarget.ReplaceAllString(strings.TrimSpace(title), ""), "")
			all[strings.ReplaceAll(strings.ToLower(title), " ", "-")] = true
		}
	}
	return all
}
