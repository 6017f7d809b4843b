package main

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"
)

// result is how a test ended.
type result struct {
	name   string // with its subtest's
	action string // pass, fail, skip
	took   time.Duration
}

type results struct{ tests []result }

// readResults reads the events of 'go test -json'.
func readResults(in io.Reader) (results, error) {
	var r results
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Action, Test string
			Elapsed      float64
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return r, err
		}
		if e.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			r.tests = append(r.tests, result{e.Test, e.Action, time.Duration(e.Elapsed * float64(time.Second))})
		}
	}
	return r, lines.Err()
}

// failedTests returns the top-level tests that failed.
func (r results) failedTests() (names []string) {
	for _, t := range r.tests {
		if t.action == "fail" && !strings.Contains(t.name, "/") {
			names = append(names, t.name)
		}
	}
	return names
}

func (r results) passed(name string) bool {
	return slices.ContainsFunc(r.tests, func(t result) bool { return t.name == name && t.action == "pass" })
}
