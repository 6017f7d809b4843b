// Package drivers runs the tests of internal/host's drivers that need several
// nodes, real huge pages or a real libvirt inside a lab, as 'make test' does
// with NUMAVISOR_LAB=1.
package drivers
