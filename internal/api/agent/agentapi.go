// Package agentapi is the protocol between a host's daemon and the fleet's server: JSON over
// HTTP/2 with TLS, on one outgoing connection of the daemon. The daemon
// authenticates by the client certificate that it got when it joined; its common name is
// the host's name, and the server accepts only what concerns that host.
//
//	POST /agent/v1/join                 Join; without a certificate, with a one-time token
//	POST /agent/v1/renew                Renew: a new certificate before the old one expires
//	PUT  /agent/v1/report               fleet.Report, at the start and whenever it changes
//	POST /agent/v1/loads                fleet.Loads, every few seconds; answered by LoadsAnswer
//	GET  /agent/v1/desired              a stream of fleet.Desired, one JSON document a line
//	PUT  /agent/v1/vms/{name}/status    fleet.VMStatus
//
// All messages are level-triggered: each replaces the one before it, so a lost or repeated
// message never matters. The stream of desired states begins with the present state, sends
// the whole state after each change, and a message every HeartbeatEvery; a daemon that
// receives nothing for three times as long connects again. A message with the revision of the one before
// it is only a heartbeat, and may lack the VMs. An error is a
// problem document (RFC 9457, application/problem+json).
package agentapi

import (
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
)

// Protocol is the version of the protocol. A server accepts its own version and the
// one before it.
const Protocol = 1

// HeartbeatEvery is how often the server sends something on the stream of desired states.
const HeartbeatEvery = 10 * time.Second

// LoadsEvery is how often a daemon sends its loads. A host that sent nothing for three
// times as long is unreachable.
const LoadsEvery = 5 * time.Second

// Join asks for a certificate for a host.
type Join struct {
	Token string `json:"token"`
	Host  string `json:"host"`
	ID    string `json:"id"` // of the machine
	Rack  string `json:"rack,omitempty"`
	// CSR is a certificate signing request, PEM. The host's key never leaves the host.
	CSR string `json:"csr"`
}

// Renew asks for a new certificate for the host of the connection.
type Renew struct {
	CSR string `json:"csr"`
}

// Joined is the answer to Join and Renew.
type Joined struct {
	Certificate string `json:"certificate"` // PEM
	CA          string `json:"ca"`          // PEM, of the servers
}

// LoadsAnswer is the answer to fleet.Loads.
type LoadsAnswer struct {
	// Full asks for all loads in the next message: the server does not have those
	// that the message is based on.
	Full bool `json:"full,omitempty"`
}

// Server is what the protocol offers a daemon.
type Server interface {
	Report(host string, r fleet.Report) error
	Loads(host string, l fleet.Loads) (LoadsAnswer, error)
	Status(host string, s fleet.VMStatus) error
}
