/* The first and only process of the lab's KVM guests: fills the guest's memory, so that it is allocated, measures
 * memory bandwidth or works on the memory when asked to. It talks over the serial console, a line at a time:
 *
 *   hello            ->  NUMAVISOR-GUEST READY <MiB filled> <cells>     also said once after boot
 *   bw MILLISECONDS  ->  BW <MB/s>                 mean over all vCPUs, one at a time, each for that long: best of five tries
 *                                                  (STREAM triad's traffic, 24 bytes an element, over all of the filled memory)
 *   work MILLISECONDS TIMES [AT FROM TO]...
 *                    ->  WORK <ms> <lines>         TIMES lines, one each MILLISECONDS: the guest's own time since the
 *                                                  work began, and how many cache lines all vCPUs together have changed.
 *                                                  A thread on each vCPU sweeps its own part of the memory all the time:
 *                                                  all of it, or from AT ms on only from FROM to TO percent of it. The
 *                                                  threads sleep if FROM is TO.
 *   probe MILLISECONDS TIMES
 *                    ->  PROBE <touches> touch <p50> <p99> <p99.9> <max> answer <p50> <p99> <p99.9> <max>
 *                                                  TIMES lines, one each MILLISECONDS, fewer where a line is typed
 *                                                  meanwhile: delays in microseconds of touches, one due each BEAT, each a
 *                                                  write to a page anywhere in the filled memory while nothing else works.
 *                                                  "touch" is how long the write itself took (it waits while its page is
 *                                                  moved); "answer" is from when it was due to when it was done, so that a
 *                                                  vCPU that does not get to run shows, and touches that are late after a stall.
 *   quit                                           powers off
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static double *data;
static size_t elements; /* of each of the three arrays */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Triad in strides through all three arrays, a window at a time: any part of the memory is equally likely to be read
 * soon, so that a short measurement still sees all of it. */
static double triad(double seconds)
{
    const size_t window = 1 << 14;
    double *a = data, *b = data + elements, *c = data + 2 * elements, begin = now(), end = begin;
    size_t windows = elements / window, done = 0, at = 0;
    while ((end = now()) - begin < seconds) {
        size_t first = at * window;
        for (size_t i = first; i < first + window; i++)
            a[i] = b[i] + 3.0 * c[i];
        at = (at + 7919) % windows; /* a prime: visits every window */
        done += window;
    }
    return done * 24 / 1e6 / (end - begin);
}

/* The best of five tries, as STREAM reports: a try while the real machine was busy does not count. */
static double bandwidth(int millis)
{
    int cpus = get_nprocs();
    double sum = 0;
    for (int c = 0; c < cpus; c++) {
        double best = 0;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        sched_setaffinity(0, sizeof one, &one);
        for (int i = 0; i < 5; i++) {
            double rate = triad(millis / 5e3);
            best = rate > best ? rate : best;
        }
        sum += best;
    }
    return sum / cpus;
}

/* A vCPU's part of the memory and what it has done there. Parts begin a cache line: no two threads write to one. */
static struct part {
    double *from;
    size_t lines;
    size_t done;
    int cpu;
} __attribute__((aligned(64))) parts[256];
static int working;

/* What the threads sweep, in percent of their parts: from << 8 | to, so that they read both at once. */
static int swept;

static void sweep_from_to(int from, int to) { __atomic_store_n(&swept, from << 8 | to, __ATOMIC_RELAXED); }

/* Changes one word of each cache line, in order, over and over. */
static void *sweep(void *arg)
{
    struct part *p = arg;
    const size_t line = 64 / sizeof *data, step = 1 << 12; /* lines between two looks at the clock's side */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(p->cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    for (size_t at = 0; __atomic_load_n(&working, __ATOMIC_RELAXED);) {
        int both = __atomic_load_n(&swept, __ATOMIC_RELAXED);
        size_t first = p->lines * (both >> 8) / 100, last = p->lines * (both & 0xff) / 100;
        if (first >= last) {
            usleep(10000);
            continue;
        }
        if (at < first || at >= last)
            at = first;
        size_t end = at + step < last ? at + step : last;
        for (volatile long *w = (long *)(p->from + at * line), *stop = (long *)(p->from + end * line); w < stop; w += line)
            *w += 1;
        __atomic_fetch_add(&p->done, end - at, __ATOMIC_RELAXED);
        at = end;
    }
    return NULL;
}

static void until(double when)
{
    double left;
    while ((left = when - now()) > 0)
        usleep(left * 1e6 + 1);
}

#define PHASES 8 /* of one order */

/* The phases are "AT FROM TO" in order of time. */
static void work(int millis, int times, const char *phases)
{
    int at[PHASES], from[PHASES], to[PHASES], count = 0, next = 0;
    for (int used; count < PHASES &&
         sscanf(phases, " %d %d %d%n", &at[count], &from[count], &to[count], &used) == 3; phases += used)
        count++;
    sweep_from_to(0, 100);
    for (; next < count && at[next] <= 0; next++)
        sweep_from_to(from[next], to[next]);
    pthread_t threads[256];
    int cpus = get_nprocs() < 256 ? get_nprocs() : 256;
    size_t lines = 3 * elements / 8 / cpus; /* of each vCPU */
    __atomic_store_n(&working, 1, __ATOMIC_RELAXED);
    double begin = now();
    for (int c = 0; c < cpus; c++) {
        parts[c] = (struct part){ data + c * lines * 8, lines, 0, c };
        if (pthread_create(&threads[c], NULL, sweep, &parts[c]))
            cpus = c;
    }
    for (int i = 1; i <= times; i++) {
        double due = begin + i * (millis / 1e3);
        for (; next < count && begin + at[next] / 1e3 <= due; next++) {
            until(begin + at[next] / 1e3);
            sweep_from_to(from[next], to[next]);
        }
        until(due);
        size_t done = 0;
        for (int c = 0; c < cpus; c++)
            done += __atomic_load_n(&parts[c].done, __ATOMIC_RELAXED);
        printf("WORK %.0f %zu\n", (now() - begin) * 1e3, done);
        fflush(stdout);
    }
    __atomic_store_n(&working, 0, __ATOMIC_RELAXED);
    for (int c = 0; c < cpus; c++)
        pthread_join(threads[c], NULL);
}

#define BEAT 1e-3     /* seconds between two touches */
#define TOUCHES 65536 /* of one line at most */

static float touch[TOUCHES], answer[TOUCHES]; /* microseconds */

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The delays that half, 99 % and 99.9 % of all are at most, and the longest. */
static void percentiles(const char *what, float *delays, size_t count)
{
    const double part[] = { 0.5, 0.99, 0.999 };
    qsort(delays, count, sizeof *delays, ascending);
    printf(" %s", what);
    for (int i = 0; i < 3; i++)
        printf(" %.0f", delays[(size_t)(part[i] * (count - 1) + 0.5)]);
    printf(" %.0f", delays[count - 1]);
}

/* Waits until a time by the guest's clock; false as soon as a line has been typed. */
static int quiet_until(double when)
{
    struct pollfd typed = { .fd = 0, .events = POLLIN };
    double left = when - now();
    if (left < 0)
        left = 0; /* late: what is typed still counts */
    struct timespec wait = { left, (left - (long)left) * 1e9 };
    return ppoll(&typed, 1, &wait, NULL) == 0;
}

/* A xorshift generator's next page: touches follow no order that moving pages might have, and none is foreseen. */
static volatile long *any_page(void)
{
    static unsigned long x = 88172645463325252;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (volatile long *)(data + x % (3 * elements / 512) * 512);
}

/* Touches are due whether or not those before were in time: a stall counts for all that were due meanwhile. */
static void probe(int millis, int times)
{
    double due = now() + BEAT;
    for (int i = 0; i < times; i++) {
        size_t count = 0;
        double end = due + millis / 1e3;
        for (; due < end && count < TOUCHES; due += BEAT) {
            if (!quiet_until(due))
                return;
            volatile long *word = any_page();
            double begin = now();
            *word += 1;
            double done = now();
            touch[count] = (done - begin) * 1e6;
            answer[count++] = (done - due) * 1e6;
        }
        if (!count)
            return;
        printf("PROBE %zu", count);
        percentiles("touch", touch, count);
        percentiles("answer", answer, count);
        printf("\n");
        fflush(stdout);
    }
}

static size_t fill(void)
{
    struct sysinfo info;
    sysinfo(&info);
    size_t bytes = (size_t)info.freeram * info.mem_unit / 100 * 85;
    elements = bytes / 3 / sizeof *data >> 14 << 14;
    bytes = 3 * elements * sizeof *data;
    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data == MAP_FAILED) {
        perror("filling memory");
        return 0;
    }
    for (size_t i = 0; i < 3 * elements; i += 512)
        data[i] = 1;
    return bytes >> 20;
}

static int cells(void)
{
    int n = 0;
    struct dirent *e;
    DIR *d = opendir("/sys/devices/system/node");
    while (d && (e = readdir(d)))
        n += !strncmp(e->d_name, "node", 4) && e->d_name[4] >= '0' && e->d_name[4] <= '9';
    if (d)
        closedir(d);
    return n;
}

static void hello(size_t filled)
{
    printf("NUMAVISOR-GUEST READY %zu %d\n", filled, cells());
    fflush(stdout);
}

int main(void)
{
    struct termios raw;
    char line[256];
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mount("none", "/proc", "proc", 0, NULL);
    mount("none", "/sys", "sysfs", 0, NULL);
    if (!tcgetattr(0, &raw)) { /* no echo: typed lines must not be mistaken for answers */
        raw.c_lflag &= ~(ECHO | ECHONL);
        tcsetattr(0, TCSANOW, &raw);
    }
    prctl(PR_SET_TIMERSLACK, 1L); /* a probe's beat must not wait for other timers */
    size_t filled = fill();
    hello(filled);
    while (fgets(line, sizeof line, stdin)) {
        int millis, times, used;
        if (sscanf(line, "bw %d", &millis) == 1)
            printf("BW %.1f\n", bandwidth(millis));
        else if (sscanf(line, "work %d %d%n", &millis, &times, &used) == 2)
            work(millis, times, line + used);
        else if (sscanf(line, "probe %d %d", &millis, &times) == 2)
            probe(millis, times);
        else if (!strncmp(line, "hello", 5))
            hello(filled);
        else if (!strncmp(line, "quit", 4))
            break;
        fflush(stdout);
    }
    sync();
    reboot(RB_POWER_OFF);
    return 0;
}
