// Words finds wording that readers must read twice, and names what to write
// instead. It reads every line of the folders below: code, comments, texts and
// pages. Run it from the root of the repository: go run ./tools/words
package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// places are the files and folders that are checked: all but this program, which
// lists the phrases.
var places = []string{
	"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "cmd", "docs", "examples", "deploy",
	"tools/mutate", "lab", "internal",
}

// kinds are the endings of the files that are read.
var kinds = []string{".go", ".md", ".yaml", ".yml", ".json", ".service", ".sh", ".txtar", ".c"}

// phrase is a wording to avoid.
type phrase struct {
	pattern string // a regular expression, matched as whole words in any case
	instead string
}

var phrases = []phrase{
	{`told`, `name who reports or shows it`},
	{`anew`, `again`},
	{`kept`, `stored, preserved, still there; of a promise: met`},
	{`beside`, `next to, in addition to, while`},
	{`came of|comes of|come of`, `the result of`},
	{`became of|becomes of`, `the result of`},
	{`whoever|whomever`, `name the actor`},
	{`by whatever`, `name the cause, or leave it out`},
	{`nobody has`, `no VM, process or user has`},
	{`shall`, `must, will, or the present tense`},
	{`(memory|pages?|data|it|they) lies?`, `is on, are on`},
	{`lain`, `been`},
	{`suffers?|suffering`, `is degraded, is slowed down`},
	{`rests`, `cooldown; pauses`},
	{`reckon(ed|ing|s)?`, `compute, estimate`},
	{`so many`, `N, this number of`},
	{`mend(ed|ing|s)?`, `correct, repair`},
	{`in its midst|in mid-\w+`, `while it runs`},
	{`be it`, `for`},
	{`(of|by) (its|their) own accord`, `by itself`},
	{`(take|takes|taken|took) up`, `resume`},
	{`cut short`, `interrupted`},
	{`on (its|their) way`, `in progress`},
	{`until told`, `until resumed`},
	{`once more`, `again`},
	{`thereby|therein|thereof|hitherto|henceforth`, `leave it out`},
	{`rivals?`, `competitor`},
	{`squeezed?`, `sharing cores`},
	{`fenced`, `dedicated`},
	{`bad start`, `worst-case start`},
	{`the ideal`, `the hand-pinned baseline`},
	{`with a word|without a word`, `with a note, silently`},
	{`gets? on`, `makes progress`},
}

// exception allows the phrases in lines of a file that contain a text.
type exception struct {
	file, text, reason string
}

var exceptions = []exception{
	{"CHANGELOG.md", "`suffering` to `degraded`", "a former name"},
	{"CHANGELOG.md", "`rests` to `cooldown_until`", "a former name"},
	{"CHANGELOG.md", "`bind --anew` to `bind --recompute`", "a former name"},
	{"docs/benchmarks.md", "three boots, two cut short", "an interrupted boot is the subject"},
}

func main() {
	findings, err := check(os.DirFS("."), places, exceptions)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if len(findings) > 0 {
		fmt.Fprintf(os.Stderr, "words: %d findings: reword them, or add an exception with its reason\n", len(findings))
		os.Exit(1)
	}
}

// check returns a line of text for each phrase that it finds, and for each
// exception that allows nothing.
func check(root fs.FS, places []string, allowed []exception) ([]string, error) {
	patterns := make([]*regexp.Regexp, len(phrases))
	for i, p := range phrases {
		patterns[i] = regexp.MustCompile(`(?i)\b(` + p.pattern + `)\b`)
	}
	var findings []string
	used := make([]bool, len(allowed))
	each := func(file string, number int, line string) {
		for i, pattern := range patterns {
			word := pattern.FindString(line)
			if word == "" {
				continue
			}
			at := slices.IndexFunc(allowed, func(e exception) bool {
				return e.file == file && strings.Contains(line, e.text)
			})
			if at >= 0 {
				used[at] = true
				continue
			}
			findings = append(findings, fmt.Sprintf("%s:%d: %q: %s", file, number, word, phrases[i].instead))
		}
	}
	for _, place := range places {
		if err := readLines(root, place, each); err != nil {
			return nil, err
		}
	}
	for i, e := range allowed {
		if !used[i] {
			finding := fmt.Sprintf("%s: the exception for %q is not needed: remove it", e.file, e.text)
			findings = append(findings, finding)
		}
	}
	return findings, nil
}

// readLines passes each line of the files of the known kinds below a place to a function.
func readLines(root fs.FS, place string, each func(file string, number int, line string)) error {
	return fs.WalkDir(root, place, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains(kinds, filepath.Ext(file)) {
			return err
		}
		f, err := root.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		return scan(f, func(number int, line string) { each(file, number, line) })
	})
}

// scan passes each line of a text to a function, with its number from 1.
func scan(r io.Reader, each func(number int, line string)) error {
	const longest = 1 << 20 // a dashboard's lines are long
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longest)
	for number := 1; lines.Scan(); number++ {
		each(number, lines.Text())
	}
	return lines.Err()
}
