/* numascope: a TCG plugin that makes an emulated NUMA host measurable, and far memory slow.
 *
 * It sees every access to memory of every emulated CPU, with the place of the memory, and filters it through a
 * direct-mapped cache per CPU. Each miss is counted by (CPU, memory node). In mode FELT the CPU is also made to
 * wait by the difference to the cost of a local miss. Waiting is real time: the clocks inside see it, so an
 * unmodified program, in a KVM guest too, runs slower on far memory. Debts are slept off in pieces, which
 * leaves the real processor to the other emulated CPUs.
 *
 * Counters and the mode are in a file that is mapped here and read and written from inside the host, through 9p.
 * While the mode is OFF no access is instrumented: a change from or to it discards all translated code, which
 * QEMU then translates again with or without the callbacks. Counters only grow, and only their CPU's thread writes
 * them: a reader that counts from zero stores their values (the file has room for that, unused here).
 *
 * The plugin's only argument is config=FILE with one item a line:
 *
 *   shared PATH                file of the counters and the mode
 *   cpu INDEX NODE             the node of an emulated CPU
 *   range START SIZE NODE      memory, in the numbers that this QEMU gives for an address (see addressRanges in Go)
 *   delay FROM TO NANOSECONDS  what a miss from a CPU of node FROM to memory of node TO costs more than a local one
 *   budget NODE NANOSECONDS    the memory of a node serves one miss each NANOSECONDS: those of all CPUs queue for it
 *   node INDEX ID              a node's position in the counters' rows and its id
 *   marked                     only instructions that follow a MARK are seen: a program's work, and not its kernel's
 *   prefetch                   a miss of the line after the last one costs no delay: it only queues for the memory
 *   stale-code                 this QEMU may run code that was overwritten
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The plugin interface as far as it is used here, from QEMU 7.2 (version 1) to 11.1 (version 7). */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb; struct qemu_plugin_insn; struct qemu_plugin_hwaddr;
typedef struct { const char *target_name; struct { int min, cur; } version; bool system_emulation; struct { int smp_vcpus, max_vcpus; } system; } qemu_info_t;
typedef void (*mem_callback)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *);
typedef void (*exec_callback)(unsigned, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, exec_callback, int flags, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, mem_callback, int flags, int rw, void *);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
extern struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t);
extern bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);

#define EXPORT __attribute__((visibility("default")))
#ifndef PLUGIN_VERSION
#error "compile with -DPLUGIN_VERSION=1 for QEMU before 9, 2 for 9.0, 3 from 9.1 on, 7 from 11.1 on"
#endif
EXPORT int qemu_plugin_version = PLUGIN_VERSION;

/* What QEMU calls for a block that it translates, a CPU with nothing to do, and after a reset of the plugin. */
static void translated(struct qemu_plugin_tb *tb);
static void idle(unsigned index);
static void listen_again(void);

static qemu_plugin_id_t self;

#if PLUGIN_VERSION >= 7
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(struct qemu_plugin_tb *, void *), void *);
extern void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t, void (*)(unsigned, void *), void *);
extern void qemu_plugin_reset(qemu_plugin_id_t, void (*)(void *), void *);
static void on_translation(struct qemu_plugin_tb *tb, void *unused) { (void)unused; translated(tb); }
static void on_idle(unsigned index, void *unused) { (void)unused; idle(index); }
static void on_reset(void *unused) { (void)unused; listen_again(); }
static void reset(void) { qemu_plugin_reset(self, on_reset, NULL); }
static void listen(void)
{
    qemu_plugin_register_vcpu_tb_trans_cb(self, on_translation, NULL);
    qemu_plugin_register_vcpu_idle_cb(self, on_idle, NULL);
}
#else
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned));
extern void qemu_plugin_reset(qemu_plugin_id_t, void (*)(qemu_plugin_id_t));
static void on_translation(qemu_plugin_id_t unused, struct qemu_plugin_tb *tb) { (void)unused; translated(tb); }
static void on_idle(qemu_plugin_id_t unused, unsigned index) { (void)unused; idle(index); }
static void on_reset(qemu_plugin_id_t unused) { (void)unused; listen_again(); }
static void reset(void) { qemu_plugin_reset(self, on_reset); }
static void listen(void)
{
    qemu_plugin_register_vcpu_tb_trans_cb(self, on_translation);
    qemu_plugin_register_vcpu_idle_cb(self, on_idle);
}
#endif

#if PLUGIN_VERSION >= 3
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
static void copy_code(struct qemu_plugin_insn *insn, void *to, size_t size) { qemu_plugin_insn_data(insn, to, size); }
#else
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
static void copy_code(struct qemu_plugin_insn *insn, void *to, size_t size) { memcpy(to, qemu_plugin_insn_data(insn), size); }
#endif

enum { CPUS = 256, NODES = 64, RANGES = 2 * NODES, LINES = 16384 };   /* LINES x 64 B = 1 MiB of cache per CPU */
enum mode { OFF, COUNT, FELT };
/* Sleep lasts longer than requested, the longer the busier the machine. The excess is credited to the CPU, up to this
 * limit: more would let it run without delays for long after the machine was busy with something else. */
enum { MOST_CREDIT_NS = -1000000 };
/* A CPU sleeps for this long at once, at least. Where kernels are not delayed, fewer sleeps leave more of the real
 * processors to them. */
enum { PIECE_NS = 100000, MARKED_PIECE_NS = 1000000 };
/* Misses that a CPU has at the memory of a node at once, as the buffers of processors allow. */
enum { OUTSTANDING = 10 };
/* An instruction without effect, nopl 0x414d554e(%rax), before one whose access to memory is seen. */
static const unsigned char MARK[] = { 0x0f, 0x1f, 0x80, 'N', 'U', 'M', 'A' };

/* The shared file. Go's scope.go knows this layout. A CPU's row begins a cache line: no two threads write to one. */
static struct shared {
    uint64_t magic, cpus, nodes;
    volatile uint64_t mode;         /* wanted; written from inside the host */
    volatile uint64_t active;       /* in force */
    uint64_t unused[3];
    uint64_t node_id[NODES];
    volatile uint64_t misses[CPUS][NODES];
    uint64_t zero[CPUS][NODES];     /* the values that readers subtract */
} *shared;
static const uint64_t MAGIC = 0x45504f4353414d55; /* "UMASCOPE" */

static struct cpu { uint64_t line[LINES], recent[2], last; int64_t debt_ns; int node; } __attribute__((aligned(64))) cpus[CPUS];
static struct range { uint64_t start, end; int node; } ranges[RANGES];
static int n_ranges;
static int64_t delay_ns[NODES][NODES];
/* The memory of a node: how long it is busy with one miss (0: no time), and until when with those that it has. */
static struct memory { int64_t takes_ns; _Atomic int64_t until; } __attribute__((aligned(64))) memories[NODES];
static bool stale_code;                 /* this QEMU may run code that was overwritten, see breakpoint */
static bool marked;                     /* only what follows a MARK is seen */
static bool prefetch;                   /* a miss of the next line only queues */
static bool changing;                   /* used by the first CPU's thread only */

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void wait_off(struct cpu *c)
{
    int64_t start = now();
    nanosleep(&(struct timespec){ c->debt_ns / 1000000000, c->debt_ns % 1000000000 }, NULL);
    int64_t left = c->debt_ns - (now() - start);
    c->debt_ns = left > MOST_CREDIT_NS ? left : MOST_CREDIT_NS;
}

/* Queues a miss of this CPU for a node's memory, and returns how long it waits for those before it. What a CPU owes is
 * slept off later: it makes its misses as if each had been delayed at once. */
static int64_t queue(struct cpu *c, struct memory *m)
{
    if (m->takes_ns == 0)
        return 0;
    int64_t here = now() + (c->debt_ns > 0 ? c->debt_ns : 0), until = atomic_load(&m->until), begins;
    do
        begins = until > here ? until : here;
    while (!atomic_compare_exchange_weak(&m->until, &until, begins + m->takes_ns));
    return begins - here;
}

static int node_of(uint64_t address)
{
    for (int i = 0; i < n_ranges; i++)
        if (address >= ranges[i].start && address < ranges[i].end)
            return ranges[i].node;
    return -1;
}

/* Runs while all CPUs stand still and no translated code is left: from here on the mode is in force. */
static void listen_again(void)
{
    listen();
    if (shared->mode <= FELT)
        shared->active = shared->mode;
    changing = false;
}

/* Puts the wanted mode into force; between COUNT and FELT the code need not be translated again. Called on the first
 * CPU only: QEMU 8.0 to 9.2.3 keep a lock after a reset, and hang when another thread asks for the next one. */
static void obey(unsigned index)
{
    uint64_t wanted = shared->mode, had = shared->active;
    if (index != 0 || wanted == had || wanted > FELT || changing)
        return;
    if (wanted != OFF && had != OFF) {
        shared->active = wanted;
        return;
    }
    changing = true;
    reset();
}

/* A CPU with nothing to do. */
static void idle(unsigned index)
{
    obey(index);
}

/* A CPU returns from an interrupt: also the busiest does so at every tick of its clock. */
static void interrupted(unsigned index, void *unused)
{
    (void)unused;
    obey(index);
}

static void access_memory(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *unused)
{
    (void)unused;
    if (shared->active == OFF || index >= CPUS)
        return;
    struct cpu *c = &cpus[index];
    /* What was read last or written last is in the cache: known without a lookup of its node, which takes long. Copying
     * word by word takes a quarter of the time so. */
    uint64_t virtual = vaddr >> 6;
    if (c->recent[0] == virtual || c->recent[1] == virtual)
        return;
    c->recent[qemu_plugin_mem_is_store(info)] = virtual;
    struct qemu_plugin_hwaddr *h = qemu_plugin_get_hwaddr(info, vaddr);
    if (!h || qemu_plugin_hwaddr_is_io(h))
        return;
    uint64_t address = qemu_plugin_hwaddr_phys_addr(h), line = address >> 6, slot = (line ^ line >> 14) % LINES;
    if (c->line[slot] == line)
        return;
    c->line[slot] = line;
    int node = node_of(address);
    if (node < 0)
        return;
    shared->misses[index][node]++;
    if (shared->active != FELT)
        return;
    bool next = line == c->last + 1;
    c->last = line;
    c->debt_ns += queue(c, &memories[node]) + (prefetch && next ? 0 : delay_ns[c->node][node]);
    int64_t takes = memories[node].takes_ns;
    if (c->debt_ns > (marked ? MARKED_PIECE_NS : PIECE_NS) || (takes > 0 && c->debt_ns > OUTSTANDING * takes))
        wait_off(c);
}

/* Takes the place of GLib's function in a QEMU before 8.0, where this library is loaded first (LD_PRELOAD). There a CPU
 * that leaves a block may keep a pointer to the list of callbacks of its last instruction ("plugins: fix optimization in
 * plugin_gen_disable_mem_helpers"), and follows it after all lists were freed with the code: QEMU then ends by an
 * assertion. So lists with our callback are not freed; while the mode is OFF the callback does nothing. */
struct array { char *data; unsigned length; };
static char *(*real_array_free)(struct array *, int);
static unsigned (*element_size)(struct array *);

__attribute__((constructor)) static void find_glib(void)
{
    element_size = (unsigned (*)(struct array *))dlsym(RTLD_NEXT, "g_array_get_element_size");
    real_array_free = (char *(*)(struct array *, int))dlsym(RTLD_NEXT, "g_array_free");
}

EXPORT char *g_array_free(struct array *a, int with_data)
{
    mem_callback ours = access_memory;
    if (a && with_data && a->data && memmem(a->data, (size_t)a->length * element_size(a), &ours, sizeof ours))
        return NULL;
    return real_array_free(a, with_data);
}

/* A CPU is about to run int3. Linux puts one over each instruction that it is about to change (text_poke_bp), and what
 * hits one that is gone already just tries again. But QEMU before 8.1 looks up code without the lock that keeps it from
 * being written meanwhile ("accel/tcg: Always lock pages before translation"): the block with int3 may outlive it, and
 * all CPUs try again for ever. Translating all code again ends that; without the fault it takes a second. */
static void breakpoint(unsigned index, void *unused)
{
    (void)index, (void)unused;
    static volatile int64_t second;
    static volatile unsigned hits;      /* within it; a few lost between CPUs do not matter */
    int64_t this = now() / 1000000000;
    if (second != this)
        second = this, hits = 0;
    if (++hits % 1000 == 0) {
        fprintf(stderr, "numascope: 1000 breakpoints in a second: translating all code again\n");
        reset();
    }
}

/* iretq, which always ends a block. */
static bool returns_from_interrupt(const unsigned char *code, size_t size) { return size == 2 && code[0] == 0x48 && code[1] == 0xcf; }

static bool is_breakpoint(const unsigned char *code, size_t size) { return size == 1 && code[0] == 0xcc; }

static bool is_mark(struct qemu_plugin_insn *insn)
{
    unsigned char code[sizeof MARK];
    if (qemu_plugin_insn_size(insn) != sizeof MARK)
        return false;
    copy_code(insn, code, sizeof code);
    return !memcmp(code, MARK, sizeof MARK);
}

static void translated(struct qemu_plugin_tb *tb)
{
    size_t n = qemu_plugin_tb_n_insns(tb);
    struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
    unsigned char code[2] = { 0 };
    size_t size = qemu_plugin_insn_size(last);
    copy_code(last, code, size < sizeof code ? size : sizeof code);
    if (returns_from_interrupt(code, size))
        qemu_plugin_register_vcpu_insn_exec_cb(last, interrupted, 0, NULL);
    if (stale_code && is_breakpoint(code, size))
        qemu_plugin_register_vcpu_insn_exec_cb(last, breakpoint, 0, NULL);
    if (shared->active == OFF)
        return;
    for (size_t i = 0; i < n; i++)
        if (!marked || (i > 0 && is_mark(qemu_plugin_tb_get_insn(tb, i - 1))))
            qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), access_memory, 0, 3, NULL);
}

static bool map_shared(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *shared) < 0)
        return false;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return shared != MAP_FAILED;
}

static bool configure(const char *path)
{
    char word[16], text[4096];
    unsigned long long a, b;
    long long d;
    int c;
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    bool ok = fscanf(f, "shared %4095[^\n]", text) == 1 && map_shared(text);
    while (ok && fscanf(f, "%15s", word) == 1) {
        if (!strcmp(word, "cpu"))
            ok = fscanf(f, "%llu %d", &a, &c) == 2 && a < CPUS && c >= 0 && c < NODES && (cpus[a].node = c, true);
        else if (!strcmp(word, "range"))
            ok = fscanf(f, "%llu %llu %d", &a, &b, &c) == 3 && n_ranges < RANGES && c >= 0 && c < NODES &&
                 (ranges[n_ranges++] = (struct range){ a, a + b, c }, true);
        else if (!strcmp(word, "delay"))
            ok = fscanf(f, "%llu %llu %lld", &a, &b, &d) == 3 && a < NODES && b < NODES && d >= 0 && (delay_ns[a][b] = d, true);
        else if (!strcmp(word, "node"))
            ok = fscanf(f, "%llu %llu", &a, &b) == 2 && a < NODES && (shared->node_id[a] = b, shared->nodes = a + 1, true);
        else if (!strcmp(word, "budget"))
            ok = fscanf(f, "%llu %lld", &a, &d) == 2 && a < NODES && d >= 0 && (memories[a].takes_ns = d, true);
        else if (!strcmp(word, "marked"))
            marked = true;
        else if (!strcmp(word, "prefetch"))
            prefetch = true;
        else if (!strcmp(word, "stale-code"))
            stale_code = true;
        else
            ok = false;
    }
    fclose(f);
    return ok;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || strncmp(argv[0], "config=", 7) || !configure(argv[0] + 7)) {
        fprintf(stderr, "numascope: cannot read the plugin's configuration %s\n", argc ? argv[0] : "(none given)");
        return -1;
    }
    if (info->system.smp_vcpus > CPUS) {
        fprintf(stderr, "numascope: %d CPUs, at most %d are counted\n", info->system.smp_vcpus, CPUS);
        return -1;
    }
    shared->cpus = info->system.smp_vcpus;
    shared->magic = MAGIC;
    self = id;
    listen_again();
    return 0;
}
