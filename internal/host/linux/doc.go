// Package linux reads and changes one Linux host through its kernel files and
// system calls: processes and their threads, page locations, memory policies,
// cgroup v2 groups, huge page pools, and the settings that make the kernel move
// memory by itself.
//
// Ideas that hold throughout:
//
//   - one file per kernel file or system call; parsers take an io.Reader or
//     bytes, so that captured hosts and fuzzers reach them;
//   - readers report what they find and record gaps for what they do not
//     understand; they decide nothing;
//   - the kernel reports success even if no page moved, so everything that
//     moves or binds is followed by a verifying read;
//   - amounts are bytes. The kernel's own units differ by file: numa_maps
//     counts pages of kernelpagesize_kB (4K pages even where a transparent huge
//     page maps them, huge pages for hugetlbfs), memory.numa_stat counts bytes,
//     hugetlb.*.numa_stat counts bytes, status counts KiB.
package linux
