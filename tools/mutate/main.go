// Command mutate measures how much a package's tests notice. It makes small
// changes to the code (a condition forced, an operator swapped, a statement
// removed), runs the package's tests against each changed program, and prints
// the mutants that no test noticed, with file and line.
//
// All mutants are compiled into one test binary; an environment variable chooses
// one. A mutant therefore costs one run of the tests and no build. The working
// tree is not changed: the compiler reads the mutated files through an overlay.
//
//	go run ./tools/mutate ./internal/decide/check
//	go run ./tools/mutate -only 'memory.go:1[0-9]:' -unreached ./internal/decide/check
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	only := flag.String("only", "", "test only mutants whose description matches this regular expression")
	skip := flag.String("skip", "", "skip tests whose name matches this regular expression")
	unreached := flag.Bool("unreached", false, "also print the mutants in code that no test runs")
	list := flag.Bool("list", false, "print the mutants and stop")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutate [flags] PACKAGE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, pkg := range flag.Args() {
		err := mutate(context.Background(), pkg, options{only: *only, skip: *skip, unreached: *unreached, list: *list})
		if err != nil {
			fmt.Fprintf(os.Stderr, "mutate: %s: %v\n", pkg, err)
			os.Exit(1)
		}
	}
}

type options struct {
	only, skip      string
	unreached, list bool
}

func mutate(ctx context.Context, pkg string, o options) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	p, err := load(ctx, pkg)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	binary, mutants, err := build(ctx, p, tmp)
	if err != nil {
		return err
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !only.MatchString(m.String()) })
	if o.list {
		for _, m := range mutants {
			fmt.Println(m)
		}
		return nil
	}
	return run(ctx, &tests{binary: binary, dir: p.Dir, skip: o.skip, tmp: tmp}, mutants, o.unreached)
}

// run tests each mutant that the unchanged tests reach and prints the survivors.
func run(ctx context.Context, t *tests, mutants []mutant, printUnreached bool) error {
	reached, took, err := t.baseline(ctx)
	if err != nil {
		return err
	}
	limit := 10*took + 2*time.Second
	var killed, survived, unreached int
	for _, m := range mutants {
		switch {
		case !reached[m.id]:
			unreached++
			if printUnreached {
				fmt.Printf("unreached  %s\n", m)
			}
		case t.fails(ctx, m.id, limit):
			killed++
		default:
			survived++
			fmt.Printf("survived   %s\n", m)
		}
	}
	fmt.Printf("%s: %d killed, %d survived, %d unreached\n", t.dir, killed, survived, unreached)
	return nil
}

// tests is the test binary of a package with all mutants.
type tests struct {
	binary, dir, skip, tmp string
}

// baseline runs the tests without a mutant. It returns the mutants that the
// tests reach and how long the tests take.
func (t *tests) baseline(ctx context.Context) (reached map[int]bool, took time.Duration, err error) {
	log := filepath.Join(t.tmp, "reached")
	cmd := t.command(ctx, "MUTANT_LOG="+log)
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, 0, fmt.Errorf("tests without a mutant: %w\n%s", err, out)
	}
	took = time.Since(start)
	text, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		return nil, 0, err
	}
	reached = map[int]bool{}
	for line := range strings.Lines(string(text)) {
		if id, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			reached[id] = true
		}
	}
	return reached, took, nil
}

// fails reports whether the tests notice a mutant: they fail or exceed the time limit.
func (t *tests) fails(ctx context.Context, id int, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.command(ctx, fmt.Sprintf("MUTANT=%d", id)).Run() != nil
}

func (t *tests) command(ctx context.Context, env string) *exec.Cmd {
	args := []string{"-test.failfast", "-test.short"}
	if t.skip != "" {
		args = append(args, "-test.skip="+t.skip)
	}
	cmd := exec.CommandContext(ctx, t.binary, args...)
	cmd.Dir = t.dir
	cmd.WaitDelay = time.Second
	// Property tests draw the same values for each mutant, and search no smaller failing example.
	cmd.Env = append(os.Environ(), env, "RAPID_NOFAILFILE=true", "RAPID_SHRINKTIME=1ms", "RAPID_SEED=1")
	return cmd
}
