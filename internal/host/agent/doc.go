// Package agent joins a host's daemon to a fleet: it holds one outgoing connection to the
// fleet's server (protocol: package api/agent), reports the host and its loads, and carries
// out the desired state of the host's VMs. Package decide/reconcile decides; operate acts.
//
// One goroutine, the loop, owns the state. Observations, actions and the connection are
// goroutines of their own that send events to it; Run waits for all of them. The messages
// are level-triggered, so a goroutine that could not send has the latest value to send
// later, and never a queue. Without the server nothing happens to the host's VMs, and the
// daemon's own work goes on.
package agent
