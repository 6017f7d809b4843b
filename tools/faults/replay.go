package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/host/agent"
)

// replayer sends reports of hosts a second time and out of order: a network that repeats and delays messages.
type replayer struct {
	fleet  *aFleet
	random *rand.Rand
	seen   []fleet.VMStatus // reports that servers have had, oldest first
	hosts  map[string]*http.Client
}

// remembered limits how old a report may be: in numbers of reports.
const remembered = 200

// replay repeats reports until ctx ends, and returns how many a server has accepted.
func (f *aFleet) replay(ctx context.Context, seed uint64) (accepted int) {
	r := replayer{fleet: f, random: rand.New(rand.NewPCG(seed, 1000)), hosts: map[string]*http.Client{}}
	defer func() {
		for _, c := range r.hosts {
			c.CloseIdleConnections()
		}
	}()
	for ctx.Err() == nil {
		r.look(ctx)
		for range 5 {
			if r.repeat(ctx) {
				accepted++
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.random.IntN(100)) * time.Millisecond):
		}
	}
	return accepted
}

// look remembers the reports that a server has.
func (r *replayer) look(ctx context.Context) {
	one, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	vms, err := r.fleet.clients[r.random.IntN(len(r.fleet.clients))].VMs(one, fleetapi.Filter{})
	if err != nil {
		return // a fault
	}
	for i := range vms {
		if s := vms[i].Status; s != nil {
			r.seen = append(r.seen, *s)
		}
	}
	r.seen = r.seen[max(0, len(r.seen)-remembered):]
}

// repeat sends one report as its host did, and returns whether a server has accepted it.
func (r *replayer) repeat(ctx context.Context) bool {
	if len(r.seen) == 0 {
		return false
	}
	s := r.seen[r.random.IntN(len(r.seen))]
	client, err := r.client(s.Host)
	if err != nil {
		return false // it joins
	}
	data, err := json.Marshal(s)
	if err != nil {
		return false
	}
	one, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(one, http.MethodPut, "https://"+
		r.fleet.api(r.random.IntN(len(r.fleet.servers)))+"/agent/v1/vms/"+url.PathEscape(s.Name)+"/status",
		bytes.NewReader(data))
	if err != nil {
		return false
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(q)
	if err != nil {
		return false // a fault
	}
	_, _ = io.Copy(io.Discard, answer.Body) // only the status matters
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// client returns a client with the certificate of a host.
func (r *replayer) client(host string) (*http.Client, error) {
	if c := r.hosts[host]; c != nil {
		return c, nil
	}
	m, err := agent.LoadMember(filepath.Join(r.fleet.folder, host, "fleet"))
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair([]byte(m.Certificate), []byte(m.Key))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(m.CA))
	r.hosts[host] = &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
	return r.hosts[host], nil
}
