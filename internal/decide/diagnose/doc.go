// Package diagnose finds what makes memory slow on a host, from an inventory
// alone: each finding has its evidence, its effect and the exact fix. A rule
// is a function in a file of its own that looks at a view of the host; it
// stays silent on what was not seen.
package diagnose
