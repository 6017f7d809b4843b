/* scatter PID NODE...: distributes the large anonymous mappings of a process over nodes, 2 MiB at a time in turn, by
 * move_pages(2). The process must be allowed to use the nodes. It makes a benchmark's start without a memory policy that
 * would outlast it. Status 1: more than one page in a hundred did not get where it belongs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 512ul              /* of a block: a transparent huge page moves as a whole */
#define LARGE (64ul << 20)       /* bytes: a VM's memory, not the heap of its process */
#define MOVE_EXCLUSIVE 2         /* MPOL_MF_MOVE: not the pages that other processes use, too */

static unsigned long right, wrong;

static int move_block(pid_t pid, unsigned long from, int node)
{
    static void *pages[PAGES];
    static int nodes[PAGES], status[PAGES];
    for (unsigned long i = 0; i < PAGES; i++) {
        pages[i] = (void *)(from + i * PAGE);
        nodes[i] = node;
        status[i] = -1;
    }
    if (syscall(SYS_move_pages, pid, PAGES, pages, nodes, status, MOVE_EXCLUSIVE) < 0)
        return -1;
    if (syscall(SYS_move_pages, pid, PAGES, pages, NULL, status, 0) < 0)
        return -1;
    for (unsigned long i = 0; i < PAGES; i++)
        if (status[i] == node)
            right++;
        else if (status[i] >= 0) /* else the page does not exist */
            wrong++;
    return 0;
}

int main(int argc, char **argv)
{
    char path[64], line[512];
    if (argc < 3)
        return fprintf(stderr, "usage: scatter PID NODE...\n"), 2;
    pid_t pid = atoi(argv[1]);
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    if (!maps)
        return perror(path), 1;
    unsigned long block = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to, inode;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, rights, &inode) != 4)
            continue;
        if (strncmp(rights, "rw", 2) || inode || to - from < LARGE)
            continue;
        for (unsigned long at = from; at + PAGES * PAGE <= to; at += PAGES * PAGE, block++)
            if (move_block(pid, at, atoi(argv[2 + block % (argc - 2)])))
                return perror("move_pages"), 1;
    }
    printf("%lu pages on their nodes, %lu elsewhere\n", right, wrong);
    return right == 0 || wrong * 100 > right + wrong;
}
