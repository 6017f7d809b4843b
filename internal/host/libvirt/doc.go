// Package libvirt is the interface to libvirt: it translates domain XML into
// Numavisor's types and back, and makes single calls to a running libvirt
// daemon.
//
// It has two separate halves:
//
//   - pure: ParseDomain reads any domain XML, Rewrite changes in it only the
//     elements for binding, DomainXML builds a new one. They use no daemon.
//   - Driver: calls with deadlines over two connections, one for reads and one
//     for control, that survive restarts of the daemon.
//
// The real effect of the elements written here (with libvirt 9.0, QEMU 7.2,
// Linux 6.1; the test TestLab shows it again):
//
//   - <memory mode='strict' nodeset=U> with <memnode mode='preferred'> for each
//     cell gives two nested limits: QEMU prefers the cell's node (MPOL_PREFERRED),
//     and cpuset.mems of every thread group is U. libvirt accepts the mix.
//   - <memory mode='preferred'|'interleave'> alone sets no cpuset.mems: there is
//     no outer limit, so the guest gets visible cells if one is needed.
//   - restrictive gives QEMU no policy at all, so cells are not placed.
//   - memfd memory must be shared: with private access every written page exists
//     twice, once in the memfd and once as an anonymous copy.
package libvirt
