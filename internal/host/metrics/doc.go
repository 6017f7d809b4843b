// Package metrics gives the daemon's status as Prometheus metrics.
//
// Every metric is made from one status when it is scraped, and none is kept:
// of a guest that is gone no series is left. With G guests, N nodes with
// memory and A alarms that last, a scrape has at most
//
//	G (N + 20) + 20 N + 2 A + 60
//
// series where each guest has memory on each node; a placed guest has it on one
// or two of them. 200 guests on 8 nodes of which each uses two have about 3600.
// No label holds an id that grows with time, a process id or free text.
//
// docs/metrics.md lists all metrics; a test holds that list.
package metrics
