/* The first process of the lab's mirrored KVM guests: loads the modules of the port to the host, runs the agent
 * numavisor-guest (unless the kernel's command line has the word noagent), and works with as many threads as asked to.
 * With the word vsock it loads the modules of a vsock, too.
 * It talks over the serial console, a line at a time:
 *
 *   hello             ->  NUMAVISOR-GUEST READY <vCPUs>     also said once after boot
 *   agent kill|off|on|stop|cont
 *                     ->  AGENT <word>      SIGKILL (the agent is started again), end for good, start, SIGSTOP, SIGCONT
 *   park LIST|none    ->  PARKED <list>     takes vCPUs out of the scheduling without an agent, which must be off
 *   stat              ->  STAT <steal> <busy> <mask>   ticks of all vCPUs since boot, from /proc/stat, and the mask of the
 *                         vCPUs that are parked
 *   run LINES REPORTS [AT THREADS]...
 *                     ->  RUN <ms> <steps> <barriers> <longest us> <steal>   REPORTS lines, one each second
 *                         MORE <threads> <mask of the vCPUs that are parked>   when there are more threads than before
 *                         RISE <us> <vCPU>
 *                         DONE
 *   ready LINES REPORTS [AT THREADS]...
 *                     ->  READY    the threads of such a run exist, and the first one has filled their memory
 *   go                ->  as run: the run that is ready begins
 *   bound LINES REPORTS AT THREADS
 *                     ->  as run, with each thread on the vCPU of its number alone, and its memory in huge pages that the
 *                         kernel took at boot; one run of a boot, without an agent
 *   stop              ->  the run ends: DONE
 *   anneal SWAPS THREADS
 *                     ->  ANNEAL <ms>
 *       A program like PARSEC's canneal: each of THREADS threads exchanges SWAPS pairs of words at random in memory that all
 *       share, and of which each has touched its part first.
 *       A program of which each of THREADS threads changes LINES cache lines of its own memory and then waits for
 *       all others, again and again; AT is in ms since the run began. A thread that waits spins for SPIN and sleeps then,
 *       as OpenMP's do. "steps" counts threads' steps since then, "barriers" those in the last second,
 *       "longest" is the longest time between two of these, "steal" ticks since then. RISE is said for each
 *       vCPU that a thread uses for the first time after more threads came, unless it was in use before: the time
 *       since then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define THREADS 64
#define PHASES 64
#define MEMORY (4 << 20) /* bytes of each thread: no cache of the lab holds them */
#define SPIN 1e-3        /* seconds */
#define PARTITION "/sys/fs/cgroup/parked-by-hand/" /* the agent has others */
#define PROGRAMS "/sys/fs/cgroup/numavisor-programs/" /* the agent moves all programs there */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void until(double when)
{
    double left;
    while ((left = when - now()) > 0)
        usleep(left * 1e6 + 1);
}

static int put(const char *path, const char *text)
{
    int f = open(path, O_WRONLY | O_CLOEXEC), ok;
    if (f < 0)
        return 0;
    ok = write(f, text, strlen(text)) == (ssize_t)strlen(text);
    close(f);
    return ok;
}

/* The sums of all vCPUs, in ticks. */
static void ticks(long *steal, long *busy)
{
    long user = 0, nice = 0, system = 0, irq = 0, soft = 0;
    FILE *f = fopen("/proc/stat", "re");
    *steal = 0;
    if (f && fscanf(f, "cpu %ld %ld %ld %*d %*d %ld %ld %ld", &user, &nice, &system, &irq, &soft, steal) != 6)
        *steal = -1;
    if (f)
        fclose(f);
    *busy = user + nice + system + irq + soft;
}

/* The agent. */

static pthread_mutex_t agent_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t agent;
static int agent_wanted = 1;

static void *keep_agent(void *none)
{
    for (;;) {
        pthread_mutex_lock(&agent_lock);
        if (agent_wanted && !agent && !(agent = fork())) {
            prctl(PR_SET_PDEATHSIG, 0);
            execl("/numavisor-guest", "numavisor-guest", NULL);
            _exit(127);
        }
        pid_t waited = agent;
        pthread_mutex_unlock(&agent_lock);
        if (waited > 0 && waitpid(waited, NULL, 0) == waited) {
            pthread_mutex_lock(&agent_lock);
            agent = 0;
            pthread_mutex_unlock(&agent_lock);
        }
        usleep(20000);
    }
    return none;
}

static void order_agent(const char *word)
{
    pthread_mutex_lock(&agent_lock);
    if (!strcmp(word, "on") || !strcmp(word, "off"))
        agent_wanted = !strcmp(word, "on");
    int signal = !strcmp(word, "stop") ? SIGSTOP : !strcmp(word, "cont") ? SIGCONT :
        !strcmp(word, "kill") || !strcmp(word, "off") ? SIGKILL : 0;
    if (agent > 0 && signal)
        kill(agent, signal);
    pthread_mutex_unlock(&agent_lock);
    printf("AGENT %s\n", word);
}

/* The vCPUs of a list such as 1-3,5. */
static unsigned long mask_of(const char *list)
{
    unsigned long mask = 0;
    char copy[256];
    snprintf(copy, sizeof copy, "%s", list);
    for (char *part = strtok(copy, ",\n"); part; part = strtok(NULL, ",\n")) {
        int from, to, n = sscanf(part, "%d-%d", &from, &to);
        for (int i = from; n > 0 && i <= (n == 2 ? to : from) && i < 64; i++)
            mask |= 1ul << i;
    }
    return mask;
}

static void park(const char *list)
{
    char now_parked[128] = "", path[128], rest[256] = "";
    unsigned long parked = mask_of(list);
    for (int i = 0; i < 64; i++) { /* an agent that has been ended leaves its partitions */
        snprintf(path, sizeof path, "/sys/fs/cgroup/numavisor-parked-%d/cpuset.cpus.partition", i);
        put(path, "member");
        snprintf(path, sizeof path, "/sys/fs/cgroup/numavisor-parked-%d", i);
        rmdir(path);
    }
    put(PARTITION "cpuset.cpus.partition", "member");
    for (int i = 0; i < get_nprocs_conf() && i < 64; i++) /* and its limit, which the kernel does not let us clear */
        if (!(parked >> i & 1))
            snprintf(rest + strlen(rest), sizeof rest - strlen(rest), "%s%d", *rest ? "," : "", i);
    put(PROGRAMS "cpuset.cpus", rest);
    put("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset");
    mkdir(PARTITION, 0755);
    if (!strcmp(list, "none"))
        rmdir(PARTITION); /* its list would make the agent's partitions invalid */
    else {
        put(PARTITION "cpuset.cpus", list);
        put(PARTITION "cpuset.cpus.partition", "isolated");
    }
    FILE *f = fopen(PARTITION "cpuset.cpus.partition", "re");
    if (f && fgets(now_parked, sizeof now_parked, f))
        now_parked[strcspn(now_parked, "\n")] = 0;
    if (f)
        fclose(f);
    printf("PARKED %s %s\n", list, now_parked);
}

/* The work. */

static struct worker {
    pthread_t thread;
    int id;
    _Atomic unsigned turn;  /* the step to do; the leader counts it up */
    _Atomic unsigned asleep;
    volatile long *memory;
    size_t at;
    _Atomic long steps;
} __attribute__((aligned(128))) workers[THREADS];
static int n_workers;
static _Atomic int n_ready;
static int lines; /* of a step */
static int bound; /* each thread runs on the vCPU of its number */
static _Atomic unsigned left __attribute__((aligned(128)));
static _Atomic unsigned leader_asleep;

static _Atomic unsigned long fresh; /* vCPUs that have not been used since the rise */
static double rose;

static void futex_wait(_Atomic unsigned *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic unsigned *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void look_where(void)
{
    unsigned long here = 1ul << (sched_getcpu() & 63);
    if (atomic_load_explicit(&fresh, memory_order_relaxed) & here && atomic_fetch_and(&fresh, ~here) & here)
        printf("RISE %.0f %d\n", (now() - rose) * 1e6, __builtin_ctzl(here));
}

/* Adds one to a word. The mark makes the lab's counter see it (scope/numascope.c). */
static void add_one(volatile long *word)
{
#ifdef __x86_64__
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .ascii \"NUMA\"; incq %0" : "+m"(*word) : : "cc");
#else
    *word += 1;
#endif
}

/* Changes cache lines of a thread's own memory, a chunk after the other. */
static void sweep(struct worker *w, int count)
{
    const size_t words = MEMORY / sizeof *w->memory, line = 64 / sizeof *w->memory;
    for (int i = 0; i < count; i++) {
        if (i % 64 == 0)
            look_where();
        add_one(&w->memory[w->at]);
        w->at = (w->at + line) % words;
    }
}

/* Waits until *word differs from value (or, for the leader, is 0): spins, and then sleeps. Spinning sweeps, too, as a
 * thread that polls shared memory does: in the lab it then takes no more of the real processors than work does. */
static void wait_for(struct worker *w, _Atomic unsigned *word, _Atomic unsigned *asleep, unsigned value, int zero)
{
    double begin = now();
    for (;;) {
        unsigned seen = atomic_load(word);
        if (zero ? seen == 0 : seen != value)
            return;
        if (now() - begin < SPIN) {
            sweep(w, 4);
            continue;
        }
        atomic_store(asleep, 1);
        seen = atomic_load(word);
        if (zero ? seen != 0 : seen == value)
            futex_wait(word, seen);
        atomic_store(asleep, 0);
    }
}

static void step(struct worker *w)
{
    sweep(w, lines);
    atomic_fetch_add_explicit(&w->steps, 1, memory_order_relaxed);
}

static void fill(struct worker *w)
{
    const size_t page = 4096 / sizeof *w->memory;
    for (size_t at = 0; at < MEMORY / sizeof *w->memory; at += page)
        w->memory[at] = 1;
}

/* Memory is there, on the node where its thread begins, before any work is measured. */
static void touch(struct worker *w)
{
    if (bound) {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(w->id, &own);
        /* Of the first thread, also that of the threads that it starts. */
        if (sched_setaffinity(0, sizeof own, &own))
            printf("NOT BOUND %d: %s\n", w->id, strerror(errno));
    }
    fill(w);
    atomic_fetch_add(&n_ready, 1);
}

/* Gives all threads new memory, on the node of vCPU 0, as a program does whose first thread fills it. So runs begin alike,
 * whatever the guest's kernel has moved since. */
static void renew(void)
{
    cpu_set_t first, all;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    memset(&all, ~0, sizeof all); /* also the vCPUs that are parked now */
    sched_setaffinity(0, sizeof first, &first);
    for (int i = 0; i < n_workers; i++) {
        madvise((void *)workers[i].memory, MEMORY, MADV_DONTNEED);
        fill(&workers[i]);
    }
    sched_setaffinity(0, sizeof all, &all);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    touch(w);
    for (unsigned done = 0;; done++) {
        wait_for(w, &w->turn, &w->asleep, done, 0);
        step(w);
        if (atomic_fetch_sub(&left, 1) == 1 && atomic_load(&leader_asleep))
            futex_wake(&left);
    }
    return NULL;
}

static int worker_ready(int id)
{
    struct worker *w = &workers[id];
    if (w->memory)
        return 1;
    w->id = id;
    /* The host places memory when it is first used. The kernel took the huge pages at boot, and has not used them. */
    w->memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (bound ? MAP_HUGETLB : 0), -1, 0);
    if (w->memory == MAP_FAILED)
        return 0;
    if (id == 0)
        touch(w);
    return id == 0 || !pthread_create(&w->thread, NULL, work, w);
}

/* One step of all threads, the leader among them. */
static void together(int threads)
{
    atomic_store(&left, threads - 1);
    for (int i = 1; i < threads; i++) {
        atomic_fetch_add(&workers[i].turn, 1);
        if (atomic_load(&workers[i].asleep))
            futex_wake(&workers[i].turn);
    }
    step(&workers[0]);
    if (threads > 1)
        wait_for(&workers[0], &left, &leader_asleep, 0, 1);
}

/* The vCPUs that are parked now: those that a list such as 1-3,5 does not name. */
static unsigned long unused(void)
{
    char list[256] = "";
    unsigned long used, all = get_nprocs_conf() >= 64 ? ~0ul : (1ul << get_nprocs_conf()) - 1;
    FILE *l = fopen(PROGRAMS "cpuset.cpus.effective", "re");
    if (!l)
        l = fopen("/sys/fs/cgroup/cpuset.cpus.effective", "re");
    if (l && !fgets(list, sizeof list, l))
        list[0] = 0;
    if (l)
        fclose(l);
    used = mask_of(list);
    return used ? all & ~used : 0;
}

static struct { int reports, count, at[PHASES], threads[PHASES]; } order;
static _Atomic int running, stopping;
static int is_ready; /* a run waits for go; it counts as running */

static void *run(void *none)
{
    double begin = now(), last = begin, longest = 0;
    int threads = 0, next = 0;
    long barriers = 0, steal0, steal, busy;
    ticks(&steal0, &busy);
    for (int report = 1; report <= order.reports && !atomic_load(&stopping);) {
        for (; next < order.count && (now() - begin) * 1e3 >= order.at[next]; next++) {
            if (order.threads[next] > threads) {
                rose = now();
                unsigned long parked = unused();
                atomic_store(&fresh, parked);
                printf("MORE %d %lx\n", order.threads[next], parked);
            }
            threads = order.threads[next];
        }
        double due = begin + report;
        if (threads)
            together(threads);
        else {
            double soon = now() + 0.05; /* an order to stop need not wait for long */
            double wake = next < order.count && begin + order.at[next] / 1e3 < due ? begin + order.at[next] / 1e3 : due;
            until(wake < soon ? wake : soon);
        }
        double end = now();
        if (threads) {
            barriers++;
            longest = end - last > longest ? end - last : longest;
        }
        last = end;
        if (end < due)
            continue;
        long steps = 0;
        for (int i = 0; i < THREADS; i++)
            steps += atomic_load_explicit(&workers[i].steps, memory_order_relaxed);
        ticks(&steal, &busy);
        printf("RUN %.0f %ld %ld %.0f %ld\n", (end - begin) * 1e3, steps, barriers, longest * 1e6, steal - steal0);
        barriers = 0, longest = 0;
        while (report <= order.reports && begin + report <= end)
            report++;
    }
    atomic_store(&fresh, 0);
    printf("DONE\n");
    atomic_store(&running, 0);
    return none;
}

/* Makes the threads of a run, and lets them touch their memory; returns whether the run can begin. */
static int prepare_run(const char *text)
{
    int used, most = 1;
    if (atomic_exchange(&running, 1)) {
        printf("BUSY\n");
        return 0;
    }
    atomic_store(&stopping, 0);
    order.count = 0;
    if (sscanf(text, " %d %d%n", &lines, &order.reports, &used) != 2)
        order.reports = 0, used = 0;
    for (text += used; order.count < PHASES &&
         sscanf(text, " %d %d%n", &order.at[order.count], &order.threads[order.count], &used) == 2; text += used) {
        int *n = &order.threads[order.count++];
        *n = *n < 0 ? 0 : *n > THREADS ? THREADS : *n;
        most = *n > most ? *n : most;
    }
    /* Bound threads touch their memory one after the other: the host may place 2 MiB at once, which two would share. */
    for (; n_workers < most && worker_ready(n_workers); n_workers++)
        while (bound && atomic_load(&n_ready) <= n_workers)
            usleep(10000);
    while (atomic_load(&n_ready) < n_workers)
        usleep(10000);
    for (int i = 0; i < THREADS; i++)
        atomic_store(&workers[i].steps, 0);
    is_ready = n_workers >= most;
    if (!is_ready) {
        printf("NO MEMORY\n");
        atomic_store(&running, 0);
    }
    return is_ready;
}

static void start_run(void)
{
    pthread_t t;
    if (!is_ready)
        return;
    is_ready = 0;
    if (pthread_create(&t, NULL, run, NULL)) {
        printf("NO MEMORY\n");
        atomic_store(&running, 0);
        return;
    }
    pthread_detach(t);
}

/* Annealing. */

#define ANNEALED (32 << 20) /* bytes */

static struct { int swaps, threads; volatile long *memory; pthread_barrier_t ready; } annealing;

static void *anneal(void *arg)
{
    const size_t words = ANNEALED / sizeof *annealing.memory, page = 4096 / sizeof *annealing.memory;
    const size_t part = words / annealing.threads, first = (size_t)arg * part;
    unsigned long random = 88172645463325252ul + (size_t)arg;
    for (size_t at = first; at < first + part; at += page)
        annealing.memory[at] = 1;
    pthread_barrier_wait(&annealing.ready);
    for (int i = 0; i < annealing.swaps; i++) {
        size_t at[2];
        for (int k = 0; k < 2; k++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            at[k] = random % (part * annealing.threads);
            add_one(&annealing.memory[at[k]]);
        }
        long word = annealing.memory[at[0]];
        annealing.memory[at[0]] = annealing.memory[at[1]];
        annealing.memory[at[1]] = word;
    }
    return NULL;
}

static void start_anneal(const char *text)
{
    pthread_t threads[THREADS];
    if (sscanf(text, "%d %d", &annealing.swaps, &annealing.threads) != 2 || annealing.threads < 1 ||
        annealing.threads > THREADS) {
        printf("ANNEAL what?\n");
        return;
    }
    annealing.memory = mmap(NULL, ANNEALED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (annealing.memory == MAP_FAILED) {
        printf("NO MEMORY\n");
        return;
    }
    pthread_barrier_init(&annealing.ready, NULL, annealing.threads + 1);
    for (long i = 0; i < annealing.threads; i++)
        if (pthread_create(&threads[i], NULL, anneal, (void *)i))
            abort();
    pthread_barrier_wait(&annealing.ready);
    double begin = now();
    for (int i = 0; i < annealing.threads; i++)
        pthread_join(threads[i], NULL);
    printf("ANNEAL %.0f\n", (now() - begin) * 1e3);
    pthread_barrier_destroy(&annealing.ready);
    munmap((void *)annealing.memory, ANNEALED);
}

/* virtio_ring before virtio for some kernels, virtio first for others: each is tried twice. */
static const char *const port_modules[] = { "virtio", "virtio_ring", "virtio", "virtio_pci_legacy_dev",
                                            "virtio_pci_modern_dev", "virtio_pci", "virtio_console", NULL };
static const char *const vsock_modules[] = { "vsock", "vmw_vsock_virtio_transport_common",
                                             "vmw_vsock_virtio_transport", NULL };

static void load_modules(const char *const names[])
{
    for (size_t i = 0; names[i]; i++) {
        char path[64];
        snprintf(path, sizeof path, "/mod/%s.ko", names[i]);
        int f = open(path, O_RDONLY | O_CLOEXEC);
        if (f >= 0) {
            syscall(SYS_finit_module, f, "", 0);
            close(f);
        }
    }
}

int main(int count, char **words) /* those of the kernel's command line that the kernel does not know */
{
    struct termios raw;
    char line[1024], word[128];
    int has_vsock = 0;
    for (int i = 1; i < count; i++) {
        agent_wanted &= strcmp(words[i], "noagent") != 0;
        has_vsock |= !strcmp(words[i], "vsock");
    }
    mkdir("/run", 0755);
    mount("none", "/proc", "proc", 0, NULL);
    mount("none", "/sys", "sysfs", 0, NULL);
    mount("none", "/dev", "devtmpfs", 0, NULL);
    mount("none", "/sys/fs/cgroup", "cgroup2", 0, NULL);
    if (!tcgetattr(0, &raw)) { /* no echo: typed lines must not be mistaken for answers */
        raw.c_lflag &= ~(ECHO | ECHONL);
        tcsetattr(0, TCSANOW, &raw);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    load_modules(port_modules);
    if (has_vsock)
        load_modules(vsock_modules);
    pthread_t t;
    pthread_create(&t, NULL, keep_agent, NULL);
    printf("NUMAVISOR-GUEST READY %d\n", get_nprocs_conf());
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "agent %127s", word) == 1)
            order_agent(word);
        else if (sscanf(line, "park %127s", word) == 1)
            park(word);
        else if (!strncmp(line, "ready ", 6)) {
            if (prepare_run(line + 6)) {
                renew();
                printf("READY\n");
            }
        } else if (!strncmp(line, "go", 2))
            start_run();
        else if (!strncmp(line, "run ", 4)) {
            prepare_run(line + 4);
            start_run();
        } else if (!strncmp(line, "bound ", 6)) {
            bound = 1;
            prepare_run(line + 6);
            start_run();
        }
        else if (!strncmp(line, "anneal ", 7))
            start_anneal(line + 7);
        else if (!strncmp(line, "stop", 4))
            atomic_store(&stopping, 1);
        else if (!strncmp(line, "stat", 4)) {
            long steal, busy;
            ticks(&steal, &busy);
            printf("STAT %ld %ld %lx\n", steal, busy, unused());
        } else if (!strncmp(line, "hello", 5))
            printf("NUMAVISOR-GUEST READY %d\n", get_nprocs_conf());
        else if (!strncmp(line, "quit", 4))
            break;
    }
    sync();
    reboot(RB_POWER_OFF);
    return 0;
}
