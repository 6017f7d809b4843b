// Package labcounter reads the access counter of the lab, the emulated NUMA
// host on which Numavisor is tested. The emulator counts memory accesses that
// miss a modelled cache, for each CPU and node, in a file that is visible
// inside the lab as Path and outside of it in the lab's shared folder.
//
// Counter is that file. Meter makes it a source of accesses for the daemon.
// On any other host the file does not exist, and Meter reports that.
package labcounter
