// Package libvirt is the border to libvirt: it turns domain XML into our
// words and our words into domain XML, and carries out single calls on a
// running libvirt daemon.
//
// Two halves, kept apart:
//
//   - pure: ParseDomain reads any domain XML, Rewrite changes in it only what
//     binding needs, DomainXML builds a new one. They see no daemon.
//   - Driver: calls with deadlines over two connections, one for reads and one
//     for control, that survive restarts of the daemon.
//
// What the elements written here really do (seen with libvirt 9.0, QEMU 7.2,
// Linux 6.1; the test TestLab shows it again):
//
//   - <memory mode='strict' nodeset=U> with <memnode mode='preferred'> for each
//     cell gives two nested limits: QEMU prefers the cell's node (MPOL_PREFERRED),
//     and cpuset.mems of every thread group is U. libvirt accepts the mix.
//   - <memory mode='preferred'|'interleave'> alone sets no cpuset.mems: there is
//     no outer limit, so cells are shown where one is needed.
//   - restrictive gives QEMU no policy at all, so cells are not placed.
//   - memfd memory must be shared: with private access every written page is
//     there twice, once in the memfd and once as anonymous copy.
package libvirt
