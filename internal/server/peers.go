package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/auth"
)

// peer is a server of the fleet as it is stored.
type peer struct {
	Address string `json:"address"` // HOST:PORT
}

// addresses returns where the servers are that run.
func (s *state) addresses() []string {
	var out []string
	for _, p := range s.servers {
		out = append(out, p.value.Address)
	}
	slices.Sort(out)
	return out
}

// relayed are the loads of hosts that one server tells the others, complete. Each message replaces the one
// before it.
type relayed struct {
	Hosts map[string]fleet.Loads `json:"hosts"`
}

const (
	// relayEvery is how often a server sends the others what the hosts connected to it have reported.
	relayEvery = time.Second
	// relayAtOnce bounds the hosts of one message, relayTime its time.
	relayAtOnce = 200
	relayTime   = 10 * time.Second
	maxRelay    = 64 << 20
)

// relay sends the loads that this server receives to all others, until ctx ends: each of them decides on them.
func (s *Server) relay(ctx context.Context) {
	certificate := auth.Renewing(func(now time.Time) (*tls.Certificate, error) {
		return s.CA.MemberCertificate(s.Names, now)
	}, s.Now)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSHandshakeTimeout: relayTime,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: s.CA.Pool(),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return certificate()
			}}}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	defer all.Wait()
	ends := map[string]context.CancelFunc{} // by address
	tick := time.NewTicker(relayEvery)
	defer tick.Stop()
	for {
		var now []string
		s.cache.read(func(st *state) { now = st.addresses() })
		for address, end := range ends {
			if !slices.Contains(now, address) {
				end()
				delete(ends, address)
			}
		}
		for _, address := range now {
			if ends[address] == nil && address != s.Address {
				to, end := context.WithCancel(ctx)
				ends[address] = end
				all.Go(func() { s.relayTo(to, client, address) })
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			for _, end := range ends {
				end()
			}
			return
		}
	}
}

// relayTo sends one server what has changed since the last message that it has received.
func (s *Server) relayTo(ctx context.Context, client *http.Client, address string) {
	tick := time.NewTicker(relayEvery)
	defer tick.Stop()
	var sent uint64
	for {
		for more := true; more; {
			message, last, rest := s.loads.since(sent, relayAtOnce)
			more = rest
			if len(message.Hosts) == 0 {
				break
			}
			if err := post(ctx, client, "https://"+address+"/server/v1/loads", message); err != nil {
				if ctx.Err() == nil {
					s.Log.Debug("a server did not take the loads of hosts", "server", address, "error", err)
				}
				break // it gets the same, or newer ones, with the next tick
			}
			sent = last
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func post(ctx context.Context, client *http.Client, url string, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, relayTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxStatus)) // the connection is used again
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}

// peerHandler serves the other servers of the fleet.
func (s *Server) peerHandler() http.Handler {
	take := answerTo(maxRelay, func(r *http.Request, m *relayed) (any, error) {
		var refused error
		for host, l := range m.Hosts {
			refused = errors.Join(refused, s.takeRelayed(r.Context(), host, l))
		}
		return nil, refused
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !auth.IsMember(r.TLS) {
			p := fleetapi.NewProblem(fleetapi.ProblemRole, "only servers of the fleet may do this")
			p.Status = http.StatusUnauthorized
			refuse(w, p)
			return
		}
		take(w, r)
	})
}

// takeRelayed takes the loads of a host that is connected to another server.
func (s *Server) takeRelayed(ctx context.Context, host string, l fleet.Loads) error {
	l.Since = 0 // they are complete
	if err := validLoads(&l); err != nil {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	if s.alive.hears(host) {
		return nil // what the host says itself is newer
	}
	s.loads.put(host, &l)
	s.sched.noteLoads(host)
	s.record(ctx, host, l.Taken)
	return nil
}
