/* A program whose accesses to memory are known: reads one word of every 64-byte line of MIB MiB, PASSES times, and
 * prints the nanoseconds of one access, best pass. Usage: known MIB PASSES */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Reads a word. The mark makes it seen where the lab counts marked accesses only (scope/numascope.c). */
static void read_word(volatile uint64_t *word)
{
    uint64_t value;
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .ascii \"NUMA\"; mov %1, %0" : "=r"(value) : "m"(*word));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t words = strtoul(argv[1], 0, 10) << 20 >> 3;
    volatile uint64_t *memory = mmap(NULL, words << 3, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    double best = 1e9;
    for (int pass = atoi(argv[2]); pass > 0; pass--) {
        double begin = now();
        for (size_t i = 0; i < words; i += 8)
            read_word(&memory[i]);
        double took = now() - begin;
        best = took < best ? took : best;
    }
    printf("%.1f\n", best * 1e9 / (words / 8));
    return 0;
}
