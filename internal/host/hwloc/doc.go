// Package hwloc reads hosts as the Portable Hardware Locality library writes
// them: the XML of `lstopo --of xml`, versions 1 and 2.
package hwloc
