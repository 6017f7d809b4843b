package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab/rotate"
)

// pauses is a program that waits for 50 ms in each of the ways that are intercepted, and prints how long each took,
// in us.
const pauses = `
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
static long us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static void until(clockid_t clock)
{
    pthread_condattr_t a; pthread_cond_t c; pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    struct timespec t;
    pthread_condattr_init(&a); pthread_condattr_setclock(&a, clock); pthread_cond_init(&c, &a);
    clock_gettime(clock, &t);
    t.tv_nsec += 50000000; t.tv_sec += t.tv_nsec / 1000000000; t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&m);
    while (!pthread_cond_timedwait(&c, &m, &t)) ;
}
int main(void)
{
    struct timespec wait = { 0, 50000000 };
    struct timeval first, last;
    gettimeofday(&first, NULL);
    long a = us(); nanosleep(&wait, NULL);
    long b = us(); ppoll(NULL, 0, &wait, NULL);
    long c = us(); until(CLOCK_MONOTONIC);
    long d = us(); until(CLOCK_REALTIME);
    long e = us();
    gettimeofday(&last, NULL);
    long date = (last.tv_sec - first.tv_sec) * 1000000 + last.tv_usec - first.tv_usec;
    printf("%ld %ld %ld %ld %ld\n", b - a, c - b, d - c, e - d, date / 4);
}
`

func TestSlowClock_SlowsClocksAndWaits(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	program := filepath.Join(t.TempDir(), "pauses")
	if err := compileC(t.Context(), []byte(pauses), program, "-pthread"); err != nil {
		t.Fatal(err)
	}
	env, err := environment(t.Context(), Shape{Slowdown: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program)
	command.Env = append(os.Environ(), env...)
	begin := time.Now()
	out, err := command.Output()
	outside := time.Since(begin)
	if err != nil {
		t.Fatal(err)
	}
	inside := strings.Fields(string(out))
	if len(inside) != 5 {
		t.Fatalf("the program printed %q", out)
	}
	for i, name := range []string{"nanosleep", "ppoll", "a condition's monotonic clock", "its date", "the date"} {
		// A busy machine makes waits longer, never shorter.
		if us, err := strconv.Atoi(inside[i]); err != nil || us < 49_900 || us > 150_000 {
			t.Errorf("%s: a wait of 50 ms took %s us inside", name, inside[i])
		}
	}
	if outside < time.Second {
		t.Errorf("waits of 200 ms inside took %v outside; the clock is 5 times slower", outside)
	}
}

func TestEnvironment_JoinsWhatQEMULoadsFirst(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if env, err := environment(t.Context(), Shape{Slowdown: 1}, nil); err != nil || len(env) != 0 {
		t.Errorf("without slow clock and libraries: %v, %v", env, err)
	}
	env, err := environment(t.Context(), Shape{Slowdown: 3}, []string{"/a.so"})
	if err != nil || len(env) != 2 || env[0] != "SLOWCLOCK=3" || !strings.HasPrefix(env[1], "LD_PRELOAD=/a.so:/") {
		t.Errorf("with both: %v, %v", env, err)
	}
	if _, err := environment(t.Context(), Shape{}, []string{"/a b.so"}); err == nil ||
		!strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("a name with a space: %v", err)
	}
}

// In a lab whose clock is slow, a second takes longer outside, and programs seem faster.
func TestLabSlowClock(t *testing.T) {
	rotate.Test(t, 2)
	shape := filepath.Join(t.TempDir(), "slow.yaml")
	const text = "name: slow\nnodes: [{cpus: 2, memory: 1G}, {cpus: 2, memory: 512M}]\nslowdown: 5\n"
	if err := os.WriteFile(shape, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h := bootForTest(t, shape, Options{})
	begin := time.Now()
	// By the kernel's clock, which follows the processor's counter, and by the date, which does not.
	fields := strings.Fields(h.in(t, "sh", "-c", `read a _ </proc/uptime; sleep 2; read b _ </proc/uptime; echo $a $b;
cat /sys/devices/system/clocksource/clocksource0/current_clocksource`))
	outside := time.Since(begin)
	if len(fields) != 3 {
		t.Fatalf("the lab says %q", fields)
	}
	first, errFirst := strconv.ParseFloat(fields[0], 64)
	last, errLast := strconv.ParseFloat(fields[1], 64)
	took := last - first
	t.Logf("2 s took %.2f s inside, %v outside, by clock source %s", took, outside, fields[2])
	if errFirst != nil || errLast != nil || took < 1.95 || took > 3 || fields[2] != "tsc" {
		t.Errorf("2 s took %.2f s inside, by clock source %s", took, fields[2])
	}
	if ratio := outside.Seconds() / took; ratio < 4.7 || ratio > 7 {
		t.Errorf("%v outside are %.2f s inside: %.1f times as long, want 5 times", outside, took, ratio)
	}
}
