// Package metrics exposes the daemon's status as Prometheus metrics.
//
// A scrape makes every metric from one status and stores nothing, so a guest
// that has ended leaves no series. With G guests, N nodes with memory, M mirrored
// guests and A active alarms, a scrape has at most
//
//	G (N + 20) + 20 N + 25 M + 2 A + 60
//
// series where each guest has memory on each node; a placed guest has it on one
// or two of them. 200 guests on 8 nodes, each of which uses two, have about
// 3600. No label contains an id that grows with time, a process id or free
// text.
//
// docs/metrics.md lists all metrics; a test compares the two.
package metrics
