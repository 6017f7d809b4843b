// Package e2e holds the tests that need a real multi-node host: they boot the
// lab and use numavisor in it as an operator would, with real libvirt, QEMU,
// KVM and kernel. They run with NUMAVISOR_LAB=1 ('make test' sets it).
package e2e
