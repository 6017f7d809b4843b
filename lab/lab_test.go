package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"

	"github.com/numavisor/numavisor/lab/repeat"
	"github.com/numavisor/numavisor/lab/rotate"
)

// bootForTest boots a lab that ends with the test.
func bootForTest(t *testing.T, shape string, o Options) *Host {
	t.Helper()
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("starts a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' and 'make lab-one T=NAME' do")
	}
	s, err := FindShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	// NUMAVISOR_LAB_QEMU runs these tests with another QEMU than the machine's own.
	o.Shape, o.Progress, o.QEMU = s, t.Logf, os.Getenv("NUMAVISOR_LAB_QEMU")
	h, err := Boot(t.Context(), o)
	if IsEmulatorFault(err) {
		repeat.Note(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(h.folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the lab left its folder behind: %v", err)
		}
	})
	t.Cleanup(func() {
		if t.Failed() && IsEmulatorFault(h.CheckCPUs(context.WithoutCancel(t.Context()))) {
			repeat.Note(t)
		}
	})
	return h
}

// in runs a command and requires status 0.
func (h *Host) in(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	status, err := h.Run(ctx, argv, &out, &errOut)
	if IsEmulatorFault(err) {
		repeat.Note(t)
	}
	if err != nil || status != 0 {
		t.Fatalf("%s: status %d, %v\n%s%s", strings.Join(argv, " "), status, err, out.String(), errOut.String())
	}
	return out.String()
}

func TestLabRunsCommands(t *testing.T) {
	t.Parallel()
	shared := filepath.Join(t.TempDir(), "a,b") // an unescaped comma ends an option of QEMU
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	h := bootForTest(t, "square4", Options{Share: shared})
	var out, errOut bytes.Buffer
	status, err := h.Run(
		t.Context(),
		[]string{"sh", "-c", `printf 'a\0b\n\377'; echo "it's" >&2; exit 7`},
		&out,
		&errOut,
	)
	if err != nil || status != 7 || out.String() != "a\x00b\n\xff" || errOut.String() != "it's\n" {
		t.Errorf("status %d, %v, stdout %q, stderr %q", status, err, out.String(), errOut.String())
	}
	if got := h.in(t, "printf", "%s|", "a b", "'", "$HOME", ""); got != "a b|'|$HOME||" {
		t.Errorf("arguments arrive as %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := h.Run(ctx, []string{"sh", "-c", "sleep 1000 & sleep 1000"}, &out, &errOut); !errors.Is(
		err,
		context.DeadlineExceeded,
	) {
		t.Errorf("a command past its deadline: %v", err)
	}
	if got := h.in(t, "sh", "-c", "pgrep -c sleep || true"); strings.TrimSpace(got) != "0" {
		t.Errorf("%s of the ended command's children still run", strings.TrimSpace(got))
	}
	endsLikeItsCommand(t, h)
	if got := h.in(t, "stat", "-fc", "%T", "/sys/fs/cgroup"); strings.TrimSpace(got) != "cgroup2fs" {
		t.Errorf("cgroup is %q", got)
	}
	h.in(t, "sh", "-c", "echo from inside > /lab/share/written")
	if got, err := os.ReadFile(filepath.Join(shared, "written")); err != nil || string(got) != "from inside\n" {
		t.Errorf("the shared folder holds %q, %v", got, err)
	}
	runsTwoAtATime(t, h)
}

// endsLikeItsCommand checks that exit statuses are those of a shell, that output of
// any size is complete, and that Run does not wait for processes that a command
// leaves behind.
func endsLikeItsCommand(t *testing.T, h *Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		argv   []string
		status int
		stdout int // bytes
	}{
		{[]string{"sh", "-c", "kill -9 $$"}, 137, 0},
		{[]string{"/no/such/program"}, 127, 0},
		{[]string{"/etc/passwd"}, 126, 0},
		{[]string{"head", "-c", "3000000", "/dev/zero"}, 0, 3000000},
		{[]string{"sh", "-c", "sleep 1000 & echo left"}, 0, 5},
		{[]string{"sh", "-c", "(sleep 1; while :; do echo later; done) & echo now"}, 0, 4},
		{[]string{"pkill", "-x", "sleep"}, 0, 0},
	} {
		var out bytes.Buffer
		status, err := h.Run(ctx, c.argv, &out, t.Output())
		if err != nil || status != c.status || out.Len() != c.stdout {
			t.Errorf("%q: status %d, %v, %d bytes; want %d and %d", c.argv, status, err, out.Len(), c.status, c.stdout)
		}
	}
	h.in(t, "pkill", "-f", "echo later")
	if status, err := h.Run(ctx, []string{"echo", "x"}, failingWriter{}, t.Output()); !errors.Is(err, errWriter) {
		t.Errorf("output that cannot be written: status %d, %v", status, err)
	}
}

var errWriter = errors.New("no room")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWriter }

// runsTwoAtATime starts two commands of which each waits for the other.
func runsTwoAtATime(t *testing.T, h *Host) {
	t.Helper()
	var both sync.WaitGroup
	for _, c := range []struct{ mine, others string }{{"a", "b"}, {"b", "a"}} {
		both.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var out, errOut bytes.Buffer
			status, err := h.Run(
				ctx,
				[]string{"sh", "-c", "touch /run/$1; until [ -e /run/$2 ]; do sleep 0.1; done; echo $1", "x", c.mine,
					c.others},
				&out,
				&errOut,
			)
			if err != nil || status != 0 || out.String() != c.mine+"\n" {
				t.Errorf("command %s of two at a time: status %d, %v, output %q", c.mine, status, err, out.String())
			}
		})
	}
	both.Wait()
}

func TestLabShowsTheShape(t *testing.T) {
	t.Parallel()
	h := bootForTest(t, "uneven", Options{})
	online := h.in(t, "sh", "-c",
		"cd /sys/devices/system/node; for n in 0 1 2 3; do cat node$n/cpulist node$n/distance; done; cat has_memory")
	want := "0-1\n10 20 16 40\n2-5\n21 10 16 50\n6\n16 16 10 40\n\n41 51 40 10\n0-1,3\n"
	if online != want {
		t.Errorf("the kernel in the lab sees\n%s\nwant\n%s", online, want)
	}
}

func TestLabShowsThreadsAndCaches(t *testing.T) {
	rotate.Test(t, 3)
	t.Parallel()
	h := bootForTest(t, "smt", Options{})
	got := h.in(
		t,
		"sh",
		"-c",
		"cd /sys/devices/system/cpu; cat cpu5/topology/thread_siblings_list cpu5/cache/index3/shared_cpu_list "+
			"cpu12/cache/index3/shared_cpu_list cpu12/topology/physical_package_id",
	)
	if want := "4-5\n4-7\n12-15\n1\n"; got != want {
		t.Errorf("siblings and L3 of CPU 5, L3 and socket of CPU 12: %q, want %q", got, want)
	}
}

// QEMU may still hold a stale breakpoint, which is then hit repeatedly
// (numascope.c, breakpoint). This test has no such breakpoint, so it only
// requires that the plugin notices the repeated hits and that the lab
// continues.
func TestLabOutlivesStaleCode(t *testing.T) {
	t.Parallel()
	h := bootForTest(t, "square4", Options{Saved: true})
	qemu := os.Getenv("NUMAVISOR_LAB_QEMU")
	if qemu == "" {
		var err error
		if qemu, err = findEmulator(t.Context(), KVM, t.Logf); err != nil {
			t.Fatal(err)
		}
	}
	version, err := askQEMUVersion(t.Context(), qemu)
	if err != nil {
		t.Fatal(err)
	}
	source := `#include <signal.h>
static void on(int s) { (void)s; }
int main(void) { signal(SIGTRAP, on); for (int i = 0; i < 100000; i++) __asm__ volatile("int3"); return 0; }`
	program := filepath.Join(t.TempDir(), "breakpoints")
	if err := compileC(t.Context(), []byte(source), program, "-static"); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(program, h.share("files", "breakpoints")); err != nil {
		t.Fatal(err)
	}
	h.in(t, "/lab/files/breakpoints")
	console, err := h.Console()
	if err != nil {
		t.Fatal(err)
	}
	if seen := bytes.Contains(console, []byte("translating all code again")); seen != version.staleCode() {
		t.Errorf("repeated breakpoints were noticed: %v, want %v for QEMU %v", seen, version.staleCode(), version)
	}
	h.in(t, "true")
}

// The counter must find each access of a program whose accesses are known, on
// the right CPU and node, with nodes of different sizes and on both sides of
// the hole below 4 GiB (which is in node 1).
func TestLabScopeCountsWhatIsKnown(t *testing.T) {
	rotate.Test(t, 4)
	t.Parallel()
	h := bootForTest(t, "uneven", Options{})
	known := compileKnown(t, h)
	scope, err := h.Scope()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cpu, node, mib int }{{0, 0, 64}, {1, 0, 64}, {0, 1, 1200}, {5, 1, 64}, {3, 3, 64},
		{6, 0, 64}} {
		count := func(passes int) uint64 {
			if err := errors.Join(scope.Set(t.Context(), labcounter.Count), scope.Reset()); err != nil {
				t.Fatal(err)
			}
			h.in(t, "numactl", fmt.Sprintf("--physcpubind=%d", c.cpu), fmt.Sprintf("--membind=%d", c.node), known,
				strconv.Itoa(c.mib), strconv.Itoa(passes))
			m, err := scope.Read()
			if err != nil {
				t.Fatal(err)
			}
			return m.CPUs[c.cpu][c.node]
		}
		// The difference of two runs leaves out what starting the program costs.
		passes := max(1, 192/c.mib) // the longest measurements take turns
		few, many := count(1), count(1+passes)
		counted, truth := float64(many)-float64(few), float64(passes)*float64(c.mib<<20)/64
		t.Logf("CPU %d, node %d, %d MiB: counted %.0f of %.0f known misses (%.2f %%)", c.cpu, c.node, c.mib, counted,
			truth, 100*counted/truth)
		if counted < 0.97*truth || counted > 1.05*truth {
			t.Errorf("CPU %d to node %d: counted %.0f misses, known are %.0f", c.cpu, c.node, counted, truth)
		}
	}
	if err := scope.Set(t.Context(), labcounter.Off); err != nil {
		t.Fatal(err)
	}
}

func compileKnown(t *testing.T, h *Host) string {
	t.Helper()
	source, err := os.ReadFile("testdata/known.c")
	if err != nil {
		t.Fatal(err)
	}
	if err := compileC(t.Context(), source, h.share("files", "known"), "-static"); err != nil {
		t.Fatal(err)
	}
	h.in(t, "cp", "/lab/files/known", "/run/known")
	return "/run/known"
}

func TestLabDistanceIsFelt(t *testing.T) {
	h := bootForTest(t, "square4", Options{Saved: true})
	known := compileKnown(t, h)
	scope, err := h.Scope()
	if err != nil {
		t.Fatal(err)
	}
	nanos := func(node int) float64 {
		out := h.in(t, "numactl", "--physcpubind=2", fmt.Sprintf("--membind=%d", node), known, "32", "8")
		ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	off := nanos(2)
	if err := scope.Set(t.Context(), labcounter.Felt); err != nil {
		t.Fatal(err)
	}
	local, neighbour, remote := nanos(1), nanos(0), nanos(2)
	t.Logf("ns per access from node 1: local %.0f, neighbour %.0f, remote %.0f; remote with the counter off %.0f",
		local, neighbour, remote, off)
	if !(local < neighbour && neighbour < remote) {
		t.Errorf("farther memory is not slower: %.0f, %.0f, %.0f ns", local, neighbour, remote)
	}
	// The shape's extra costs, within a factor: the machine below is shared.
	for _, c := range []struct {
		name        string
		extra, want float64
	}{{"neighbour", neighbour - local, 55}, {"remote", remote - local, 155}} {
		if c.extra < 0.7*c.want || c.extra > 3*c.want {
			t.Errorf("%s memory costs %.0f ns more than local, the shape says %.0f", c.name, c.extra, c.want)
		}
	}
	if err := scope.Set(t.Context(), labcounter.Off); err != nil {
		t.Fatal(err)
	}
	if again := nanos(2); again > 5*off {
		t.Errorf("switched off, an access takes %.0f ns; %.0f before it was first on", again, off)
	}
}

// budgetShape has a node whose memory serves 100 misses in a millisecond, and sees marked accesses alone.
const budgetShape = `name: budget
nodes: [{cpus: 2, memory: 1G, misses_per_ms: 100}, {cpus: 2, memory: 1G}]
delay_local: true
marked: true
`

// Programs whose demand is known share a node's budget: together they get it and no more, alone too. Nothing else is
// counted where only marked accesses are seen.
func TestLabBudgetOfANode(t *testing.T) {
	rotate.Test(t, 1)
	shape := filepath.Join(t.TempDir(), "budget.yaml")
	if err := os.WriteFile(shape, []byte(budgetShape), 0o600); err != nil {
		t.Fatal(err)
	}
	h := bootForTest(t, shape, Options{Saved: true})
	known := compileKnown(t, h)
	scope, err := h.Scope()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(scope.Set(t.Context(), labcounter.Felt), scope.Reset()); err != nil {
		t.Fatal(err)
	}
	const mib, passes = 8, 3
	// Programs on these CPUs read memory of a node at the same time; the mean time of an access, in ns.
	nanos := func(node int, cpus ...int) float64 {
		script := ""
		for _, cpu := range cpus {
			script += fmt.Sprintf("numactl --physcpubind=%d --membind=%d %s %d %d & ", cpu, node, known, mib, passes)
		}
		sum := 0.0
		for _, field := range strings.Fields(h.in(t, "sh", "-c", script+"wait")) {
			ns, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += ns
		}
		return sum / float64(len(cpus))
	}
	free, alone, three := nanos(1, 0, 2, 3), nanos(0, 0), nanos(0, 0, 2, 3)
	t.Logf("ns per access: three programs without a budget %.0f, one with it %.0f, three %.0f", free, alone, three)
	// One miss takes 10 us of the memory's time. The best pass of a program is printed: it may be its last one, when
	// others have ended, so three programs together show a little less than three times that.
	for _, c := range []struct {
		name             string
		got, least, most float64
	}{{"no budget", free, 0, 9e3}, {"one program", alone, 9.5e3, 15e3}, {"three programs", three, 20e3, 45e3}} {
		if c.got < c.least || c.got > c.most {
			t.Errorf("%s: %.0f ns per access; expected from %.0f to %.0f", c.name, c.got, c.least, c.most)
		}
	}
	counted, err := scope.Read()
	if err != nil {
		t.Fatal(err)
	}
	sums := [2]float64{}
	for _, row := range counted.CPUs {
		sums[0], sums[1] = sums[0]+float64(row[0]), sums[1]+float64(row[1])
	}
	const program = passes * mib << 20 / 64
	for node, known := range [2]float64{4 * program, 3 * program} {
		if sums[node] < 0.95*known || sums[node] > known { // what a program before it left in the cache does not miss
			t.Errorf("node %d: counted %.0f misses; known are %.0f", node, sums[node], known)
		}
	}
}

// The counter is switched and read from inside; and reacts while no CPU is ever idle.
func TestLabScopeObeysFromInside(t *testing.T) {
	t.Parallel()
	program, err := filepath.Abs("../bin/numavisor")
	if err != nil {
		t.Fatal(err)
	}
	h := bootForTest(t, "square4", Options{Files: map[string]string{"numavisor": program}, Saved: true})
	misses := func() (sum uint64) {
		var m labcounter.Misses
		if err := json.Unmarshal([]byte(h.in(t, "numavisor", "lab", "scope", "read", "-o", "json")), &m); err != nil {
			t.Fatal(err)
		}
		if len(m.CPUs) != 8 || len(m.Nodes) != 4 {
			t.Fatalf("%d CPUs and %d nodes of 8 and 4", len(m.CPUs), len(m.Nodes))
		}
		for _, row := range m.CPUs {
			for _, n := range row {
				sum += n
			}
		}
		return sum
	}
	if n := misses(); n != 0 {
		t.Errorf("%d misses were counted before it was first on", n)
	}
	h.in(t, "numavisor", "lab", "scope", "count")
	if misses() == 0 {
		t.Error("switched on from inside, it counts nothing")
	}
	switches(t, h, "idle")
	h.in(
		t,
		"sh",
		"-c",
		"for c in 0 1 2 3 4 5 6 7; do taskset -c $c sh -c 'while :; do echo >/dev/null; done' & echo $!; done "+
			">/run/busy",
	)
	switches(t, h, "busy")
	h.in(t, "sh", "-c", "kill $(cat /run/busy)")
	counted := misses()
	if counted == 0 {
		t.Error("nothing was counted")
	}
	if again := misses(); again != counted {
		t.Errorf("%d misses were counted while it was off", again-counted)
	}
	h.in(t, "numavisor", "lab", "scope", "reset")
	if n := misses(); n != 0 {
		t.Errorf("%d misses after a reset", n)
	}
}

// switches goes through all modes, from outside, so that its duration is that of the counter, and ends with off.
func switches(t *testing.T, h *Host, cpus string) {
	t.Helper()
	scope, err := h.Scope()
	if err != nil {
		t.Fatal(err)
	}
	modes := []labcounter.Mode{labcounter.Felt, labcounter.Off, labcounter.Count, labcounter.Felt, labcounter.Off}
	for range 5 { // a QEMU before 8.0 ended here once in three changes (numascope.c, g_array_free)
		modes = append(modes, labcounter.Count, labcounter.Off)
	}
	for _, mode := range modes {
		time.Sleep(100 * time.Millisecond) // so that each mode is in force for a while
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		if err := scope.Set(ctx, mode); err != nil {
			t.Fatalf("mode %d, all CPUs %s: %v", mode, cpus, err)
		}
		t.Logf("mode %d is in force after %v, all CPUs %s", mode, time.Since(begin).Round(time.Millisecond), cpus)
	}
}

// A lab whose program is killed leaves no QEMU process, and its folder goes with the next lab.
func TestLabEndsWithItsProgram(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("starts a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' and 'make lab-one T=NAME' do")
	}
	for _, c := range []struct {
		sig  syscall.Signal
		when string // the file in the lab's folder that triggers the signal
	}{{syscall.SIGKILL, "console"}, {syscall.SIGINT, "console"}, {syscall.SIGTERM, "share/files/runs"}} {
		t.Run(c.sig.String(), func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			program := exec.CommandContext(t.Context(), "../bin/numavisor", "lab", "run", "--", "sh", "-c",
				"touch /lab/files/runs; sleep 1000")
			program.Stderr = t.Output()
			if err := program.Start(); err != nil {
				t.Fatalf("%v ('make build' makes bin/numavisor)", err)
			}
			waitFor(t, "a QEMU process and its "+c.when, func() bool {
				there, _ := filepath.Glob(filepath.Join(temp, folderPrefix+"*", c.when))
				return len(there) > 0 && len(emulators(temp)) > 0
			})
			begin := time.Now()
			if err := program.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			if err := program.Wait(); err == nil {
				t.Error("an interrupted lab ended with status 0")
			}
			waitFor(t, "no QEMU process", func() bool { return len(emulators(temp)) == 0 })
			t.Logf("gone after %v", time.Since(begin).Round(time.Millisecond))
			if c.sig == syscall.SIGKILL {
				sweep() // as the next lab does
			}
			if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// A lab whose emulator fails while it boots boots a second time; one whose emulator refuses to start does not.
func TestLabBootsAgain_WhereTheEmulatorFails(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("starts a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' and 'make lab-one T=NAME' do")
	}
	shape, err := FindShape("square4")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, end string
		fault     error // nil: not a fault of the emulator
		boots     int
	}{
		{"crashes", "kill -SEGV $$", ErrCrashed, bootAttempts},
		{"resets itself", "exit 0", ErrReset, bootAttempts},
		{"refuses an option", "exit 1", nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			boots := filepath.Join(t.TempDir(), "boots")
			qemu := filepath.Join(filepath.Dir(boots), "qemu")
			script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != --version ] || exec qemu-system-x86_64 --version\n"+
				"echo >> %s\n%s\n", boots, c.end)
			if err := os.WriteFile(qemu, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			h, err := Boot(t.Context(), Options{Shape: shape, QEMU: qemu, Progress: t.Logf})
			if err == nil {
				t.Fatal(errors.Join(errors.New("it booted"), h.Close()))
			}
			if IsEmulatorFault(err) != (c.fault != nil) || c.fault != nil && !errors.Is(err, c.fault) {
				t.Errorf("the error is %v, want one of %v", err, c.fault)
			}
			if began, err := os.ReadFile(boots); err != nil || len(began) != c.boots {
				t.Errorf("QEMU began %d times, want %d; %v", len(began), c.boots, err)
			}
		})
	}
}

// emulators finds QEMU processes whose arguments name a folder.
func emulators(folder string) []string {
	var found []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		args, err := os.ReadFile(l)
		if err == nil && bytes.Contains(args, []byte(folder)) && bytes.Contains(args, []byte("qemu-system")) {
			found = append(found, l)
		}
	}
	return found
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout waiting for: %s", what)
		}
	}
}
