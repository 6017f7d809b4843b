// Program suite runs the tests in the lab: it chooses the part of the long
// tests that runs, runs the tests of Xen after the others, repeats a test whose
// emulator failed, prints where the minutes went, and warns beyond its
// budget.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/numavisor/numavisor/lab/cputime"
	"github.com/numavisor/numavisor/lab/repeat"
	"github.com/numavisor/numavisor/lab/rotate"
)

const (
	// mostRepeats is how many tests may be repeated after their emulator failed. A run boots some 45 emulators; two of
	// them failed in one run, one by a crash in its firmware and one by a reset after seven minutes.
	mostRepeats = 3
	// budget is how long the lab's part of 'make test' should take on two otherwise
	// idle CPUs; beyond it the suite prints a warning. Up to 8 of these minutes are
	// the part of Xen's tests that runs, without another lab at the same time.
	// It fails nothing: the same suite took from 24 to 62 minutes on machines of one
	// kind that nothing else used, since some are slower.
	budget = 25 * time.Minute
	// timeLimit ends a suite that hangs; allTimeLimit, one that does not rotate.
	timeLimit    = 80 * time.Minute
	allTimeLimit = 150 * time.Minute
	// mostLabs is how many labs run at once at most; each has 4 GiB.
	mostLabs = 4
)

// labsAtOnce is one for each CPU: a lab seldom uses more than one.
func labsAtOnce() int { return min(runtime.NumCPU(), mostLabs) }

func main() {
	all := flag.Bool("all", false, "run all long tests; there is no budget then")
	run := flag.String("run", "Lab", "run only tests whose name matches")
	runner := flag.String("runner", "gotest.tools/gotestsum@v1.13.0", "gotestsum, as go run takes it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := suite(ctx, *all, *run, *runner)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab suite:", err)
		os.Exit(1)
	}
}

func suite(ctx context.Context, all bool, run, runner string) error {
	limit := timeLimit
	if all {
		limit = allTimeLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	folder, err := os.MkdirTemp("", "lab-suite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	groups, err := groupsOfTests("lab")
	if err != nil {
		return err
	}
	part := "all"
	if !all {
		part = cmp.Or(os.Getenv(rotate.Variable), strconv.Itoa(commits(ctx)%rotate.Parts))
	}
	fmt.Printf("== part of the long tests that runs: %s (by the number of commits, or %s; 'make test-all' runs all)\n",
		part, rotate.Variable)
	s := &session{folder: folder, part: part, runner: runner}
	turns, err := turnsOf(groups, run)
	if err != nil {
		return err
	}
	clock := cputime.Start()
	var first results
	var failed []outcome
	for _, t := range turns {
		o := s.run(ctx, t)
		first.tests = append(first.tests, o.tests...)
		if o.err != nil {
			failed = append(failed, o)
		}
		if ctx.Err() != nil {
			break
		}
	}
	faulty, err := s.faulty()
	if err != nil {
		return err
	}
	verdict := ctx.Err()
	if len(failed) > 0 && verdict == nil {
		verdict = s.repeat(ctx, failed, faulty)
	}
	wall, cpu, others := clock.Wall(), clock.Own(), clock.Others()
	printTable(os.Stdout, first, groups)
	fmt.Printf("lab: %.1f minutes, %.1f CPU minutes; other programs used %.0f %% of the machine\n", wall.Minutes(),
		cpu.Minutes(), 100*others)
	if all || run != "Lab" {
		return verdict
	}
	if wall > budget {
		fmt.Printf("lab: WARNING: more than the budget of %v for two idle CPUs: make the tests cheaper, "+
			"or let some of them rotate (lab/rotate)\n", budget)
	}
	return verdict
}

// session runs gotestsum.
type session struct {
	folder, part, runner string
}

// faultFile has the names of the tests whose emulator failed.
func (s *session) faultFile() string { return filepath.Join(s.folder, "faults") }

// turn is a run of tests.
type turn struct {
	name          string
	pattern, skip string // of go test; an empty skip skips none
	labs          int    // at the same time
}

// xenTests begin with xenPrefix. A lab that boots Xen does not share the CPUs with another lab: its commands would
// take several times as long, longer than their deadlines.
const xenPrefix = "TestLabXen"

// turnsOf returns the runs of the tests that pattern names as -run of go test does: those of Xen come last, one at a
// time. groups has all tests as keys.
func turnsOf(groups map[string]string, pattern string) (turns []turn, err error) {
	top, rest, _ := strings.Cut(pattern, "/")
	names, err := regexp.Compile(top)
	if err != nil {
		return nil, fmt.Errorf("-run %q: %w", pattern, err)
	}
	var xen []string
	others := false
	for name := range groups {
		switch {
		case !names.MatchString(name):
		case strings.HasPrefix(name, xenPrefix):
			xen = append(xen, name)
		default:
			others = true
		}
	}
	if others {
		turns = append(turns, turn{name: "first", pattern: pattern, skip: "^" + xenPrefix, labs: labsAtOnce()})
	}
	if len(xen) > 0 {
		slices.Sort(xen)
		only := exactly(xen)
		if rest != "" {
			only += "/" + rest
		}
		turns = append(turns, turn{name: "xen", pattern: only, labs: 1})
	}
	if len(turns) == 0 {
		return nil, fmt.Errorf("-run %q: lab/ has no such test", pattern)
	}
	return turns, nil
}

// exactly is the pattern that names some tests and no others.
func exactly(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// outcome is how the tests of a turn ended.
type outcome struct {
	results
	err error
}

// run runs a turn.
func (s *session) run(ctx context.Context, t turn) (o outcome) {
	events := filepath.Join(s.folder, t.name+".json")
	args := []string{"run", s.runner, "--format", "testname", "--jsonfile", events, "--packages=./lab/...", "--",
		"-count=1", "-p=1", fmt.Sprintf("-parallel=%d", t.labs), "-timeout=" + allTimeLimit.String(), "-run", t.pattern}
	if t.skip != "" {
		args = append(args, "-skip", t.skip)
	}
	c := exec.CommandContext(ctx, "go", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "NUMAVISOR_LAB=1", rotate.Variable+"="+s.part,
		repeat.Variable+"="+s.faultFile())
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	o.err = c.Run()
	f, err := os.Open(events)
	if err != nil {
		o.err = errors.Join(o.err, err)
		return o
	}
	defer f.Close()
	o.results, err = readResults(f)
	o.err = errors.Join(o.err, err)
	return o
}

// faulty returns the top-level tests whose emulator failed.
func (s *session) faulty() ([]string, error) {
	text, err := os.ReadFile(s.faultFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, name := range strings.Fields(string(text)) {
		top, _, _ := strings.Cut(name, "/")
		names = append(names, top)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// repeat runs the tests that failed again, one at a time, if the emulator of every one of them failed, and there
// are few.
func (s *session) repeat(ctx context.Context, failed []outcome, faulty []string) error {
	var names []string
	var err error
	for _, o := range failed {
		names, err = append(names, o.failedTests()...), errors.Join(err, o.err)
	}
	fmt.Printf("labs whose emulator locked up, crashed or reset itself, or whose VM restarted: %d of at most %d: %v\n",
		len(faulty), mostRepeats, faulty)
	if !repeatable(failed, faulty) {
		return err
	}
	again := s.run(ctx, turn{name: "again", pattern: exactly(names), labs: 1})
	err = again.err
	fmt.Printf("\n%-60s %s\n", "REPEATED AFTER ITS EMULATOR FAILED", "RESULT")
	for _, name := range names {
		result := "failed again"
		if again.passed(name) {
			result = "passed"
		}
		fmt.Printf("%-60s %s\n", name, result)
		if result != "passed" {
			err = errors.Join(err, fmt.Errorf("%s failed again", name))
		}
	}
	return err
}

// repeatable reports whether all that failed are few tests whose emulator failed. In a turn that failed without a
// failed test, something else broke: a build, a time limit.
func repeatable(failed []outcome, faulty []string) bool {
	if len(faulty) > mostRepeats {
		return false
	}
	for _, o := range failed {
		names := o.failedTests()
		other := func(name string) bool { return !slices.Contains(faulty, name) }
		if len(names) == 0 || slices.ContainsFunc(names, other) {
			return false
		}
	}
	return true
}

// commits is the number of commits of the checkout; 0 outside of one.
func commits(ctx context.Context) int {
	out, err := exec.CommandContext(ctx, "git", "rev-list", "--count", "HEAD").Output()
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return n
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// groupsOfTests names the group of each test function below a folder: package and file.
func groupsOfTests(folder string) (map[string]string, error) {
	groups := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunction.FindAllStringSubmatch(string(text), -1) {
			groups[m[1]] = strings.TrimSuffix(path, "_test.go")
		}
		return err
	})
	return groups, err
}

// printTable prints where the minutes went, by group.
func printTable(w io.Writer, r results, groups map[string]string) {
	type row struct {
		group            string
		tests, skipped   int
		took             time.Duration
		longest          time.Duration
		longestTestsName string
	}
	rows := map[string]*row{}
	for _, t := range r.tests {
		if strings.Contains(t.name, "/") {
			continue
		}
		group := groups[t.name]
		g := rows[group]
		if g == nil {
			g = &row{group: group}
			rows[group] = g
		}
		if t.action == "skip" {
			g.skipped++
			continue
		}
		g.tests++
		g.took += t.took
		if t.took > g.longest {
			g.longest, g.longestTestsName = t.took, t.name
		}
	}
	var all []*row
	for _, g := range rows {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *row) int { return int(b.took - a.took) })
	fmt.Fprintf(w, "\n%-28s %7s %7s %8s  %s\n", "GROUP", "TESTS", "OTHERS", "MINUTES", "LONGEST")
	for _, g := range all {
		fmt.Fprintf(w, "%-28s %7d %7d %8.1f  %s %.0f s\n", g.group, g.tests, g.skipped, g.took.Minutes(),
			g.longestTestsName, g.longest.Seconds())
	}
}
