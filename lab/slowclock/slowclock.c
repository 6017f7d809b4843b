/* slowclock: makes all clocks of a program run more slowly, by a whole factor. The lab loads it into QEMU (LD_PRELOAD).
 *
 * An emulated CPU is some thirty times slower than a real one, and emulated CPUs share the few real ones. The tick of
 * a busy vCPU alone, 250 times a second, takes a quarter of a real processor. With a clock that is N times slower, all
 * that the real processors do seems N times faster inside, and what happens by the clock happens less often outside.
 *
 * Intercepted is what QEMU, GLib and the lab's plugin use: the clocks, and waits for a time. The counter of the
 * processor (rdtsc) is not slowed: a kernel that measures its rate against the clocks finds it N times as fast.
 *
 * SLOWCLOCK in the environment is the factor.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static int64_t factor;
static int64_t epoch; /* the real-time clock at the start, ns: from there on it is slow */
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_nanosleep)(const struct timespec *, struct timespec *);
static int (*real_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static int64_t nanos(const struct timespec *t) { return t->tv_sec * 1000000000ll + t->tv_nsec; }

static struct timespec of(int64_t ns) { return (struct timespec){ ns / 1000000000, ns % 1000000000 }; }

/* Longer than any wait: no product overflows. */
static int64_t times(int64_t ns) { return ns > INT64_MAX / 2 / factor ? INT64_MAX / 2 : ns * factor; }

/* Before main there is one thread. */
__attribute__((constructor)) static void start(void)
{
    if (factor)
        return;
    const char *text = getenv("SLOWCLOCK");
    long n = text ? strtol(text, NULL, 10) : 1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_nanosleep = dlsym(RTLD_NEXT, "nanosleep");
    real_ppoll = dlsym(RTLD_NEXT, "ppoll");
    real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec now;
    real_clock_gettime(CLOCK_REALTIME, &now);
    epoch = nanos(&now);
    factor = n > 1 ? n : 1;
}

/* Whether a clock is one of the date, which begins in 1970, and not at the machine's start. */
static int of_date(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI; }

EXPORT int clock_gettime(clockid_t id, struct timespec *t)
{
    start();
    int result = real_clock_gettime(id, t);
    if (result == 0 && of_date(id))
        *t = of(epoch + (nanos(t) - epoch) / factor);
    else if (result == 0 && id != CLOCK_PROCESS_CPUTIME_ID && id != CLOCK_THREAD_CPUTIME_ID)
        *t = of(nanos(t) / factor);
    return result;
}

EXPORT int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
    return result;
}

EXPORT int nanosleep(const struct timespec *wait, struct timespec *left)
{
    start();
    struct timespec longer = of(times(nanos(wait)));
    int result = real_nanosleep(&longer, left);
    if (result != 0 && left)
        *left = of(nanos(left) / factor);
    return result;
}

EXPORT int ppoll(struct pollfd *files, nfds_t n, const struct timespec *wait, const sigset_t *mask)
{
    start();
    if (!wait)
        return real_ppoll(files, n, NULL, mask);
    struct timespec longer = of(times(nanos(wait)));
    return real_ppoll(files, n, &longer, mask);
}

/* The clock is one of the two, by the condition's attribute: a time before 2001 is of the machine's start. */
EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                                  const struct timespec *restrict until)
{
    start();
    int64_t ns = nanos(until);
    struct timespec later = of(until->tv_sec < 1000000000 ? times(ns) : epoch + times(ns - epoch));
    return real_cond_timedwait(c, m, &later);
}
