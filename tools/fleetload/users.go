package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/cputime"
	"github.com/numavisor/numavisor/tools/process"
)

// latencies collects how long requests took, by operation.
type latencies struct {
	mu     sync.Mutex
	by     map[string][]time.Duration
	failed int
	why    error // the first failure
}

func newLatencies() *latencies { return &latencies{by: map[string][]time.Duration{}} }

// do makes a request and notes how long it took.
func (l *latencies) do(operation string, f func() error) error {
	began := time.Now()
	err := f()
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed++
		if l.why == nil {
			l.why = fmt.Errorf("%s: %w", operation, err)
		}
		return err
	}
	l.by[operation] = append(l.by[operation], took)
	return nil
}

func (l *latencies) all() (out []time.Duration) {
	for _, took := range l.by {
		out = append(out, took...)
	}
	return out
}

// small is the VM that users create.
func small(name string) fleetapi.VMCreate {
	return fleetapi.VMCreate{Project: fleetapi.DefaultProject, Labels: map[string]string{"made": "fleetload"},
		Spec: guest.Spec{Name: name, VCPUs: 1, Memory: 2 * topology.GiB}}
}

// place lets users create VMs, one after the other, and adds how many a second.
func (s *served) place(ctx context.Context, r *report, clients int, limit time.Duration) error {
	l := newLatencies()
	before, err := process.CPU(s.program.PID())
	if err != nil {
		return err
	}
	pending, clock := 0, cputime.Start()
	began := time.Now()
	var all sync.WaitGroup
	for id := range clients {
		c, err := s.client()
		if err != nil {
			return err
		}
		all.Go(func() {
			defer c.Close()
			for n := 0; time.Since(began) < limit && ctx.Err() == nil; n++ {
				var vm fleetapi.VM
				err := l.do("create", func() (err error) {
					vm, err = c.CreateVM(ctx, small(fmt.Sprintf("user%02d-%06d", id, n)), fleetapi.Change{})
					return err
				})
				if err == nil && vm.Host == "" {
					l.mu.Lock()
					pending++
					l.mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	took, made := time.Since(began), len(l.by["create"])
	after, err := process.CPU(s.program.PID())
	if err = errors.Join(err, l.why); err != nil {
		return err
	}
	if made == 0 || pending > 0 {
		return fmt.Errorf("of %d VMs, %d found no host: the fleet is too full for this measurement", made, pending)
	}
	r.atLeast("placements a second, by the REST API with claims in etcd", float64(made)/took.Seconds(), 500)
	r.add(fmt.Sprintf("  p99 of a request of these %d users, ms", clients), "%.1f",
		milliseconds(percentile(l.by["create"], 99)))
	r.add("  CPU time of the server for each, ms", "%.2f", milliseconds(after-before)/float64(made))
	r.add("  server, CPUs used", "%.2f", (after-before).Seconds()/took.Seconds())
	r.add("  these users, CPUs used", "%.2f", clock.Own().Seconds()/clock.Wall().Seconds())
	r.others(clock, after-before)
	return nil
}

// mixture is what users ask for while daemons report.
type mixture struct {
	s      *served
	api    *fleetapi.Client
	raw    *http.Client
	random *rand.Rand
	hosts  int // that are connected
	took   *latencies

	mu   sync.Mutex
	made []madeVM // oldest first; users have not deleted them
	n    int
}

type madeVM struct {
	name string
	at   time.Time
}

// deleteAfter is how old a VM is at least when its user deletes it.
const deleteAfter = 10 * time.Second

func (s *served) mixture(hosts int) (*mixture, error) {
	api, err := s.client()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.ca) {
		return nil, errors.New("the server's CA is no certificate")
	}
	return &mixture{s: s, api: api, hosts: hosts, random: rand.New(rand.NewPCG(3, 0)), took: newLatencies(),
		raw: &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}}, nil
}

// run sends a number of requests a second, whether earlier ones have been answered or not.
func (m *mixture) run(ctx context.Context, rate int, limit time.Duration) {
	defer m.api.Close()
	defer m.raw.CloseIdleConnections()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	end := time.After(limit)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-tick.C:
		}
		next := m.next(ctx)
		all.Go(next)
	}
}

// next draws the next request.
func (m *mixture) next(ctx context.Context) func() {
	host := m.random.IntN(m.hosts)
	get := func(operation, path string) func() {
		return func() { _ = m.took.do(operation, func() error { return m.get(ctx, path) }) } // noted
	}
	switch n := m.random.IntN(100); {
	case n < 10:
		return get("list a host's VMs", "/v1/vms?host="+hostName(host))
	case n < 20: // a page somewhere in the middle of all that match
		return get("list by label, 100 a page", "/v1/vms?label=tier=gold&limit=100&cursor="+hostName(host))
	case n < 25:
		return get("list by state, 100 a page", "/v1/vms?state=running&limit=100&cursor="+hostName(host))
	case n < 35:
		return get("list hosts, 100 a page", "/v1/hosts?limit=100&cursor="+hostName(host))
	case n < 60 && m.s.sample.vmsOn(host) > 0:
		return get("show a VM", "/v1/vms/"+vmName(host, 0))
	case n < 65:
		return get("show a host", "/v1/hosts/"+hostName(host))
	case n < 80:
		return func() { m.create(ctx, "create, dry run", fleetapi.Change{DryRun: true}) }
	case n < 90:
		return func() { m.create(ctx, "create", fleetapi.Change{}) }
	default:
		return func() { m.remove(ctx) }
	}
}

func (m *mixture) get(ctx context.Context, path string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.s.address+path, nil)
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", "Bearer "+m.s.token)
	answer, err := m.raw.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !json.Valid(text)) {
		err = fmt.Errorf("GET %s: %s: %.300s", path, answer.Status, text)
	}
	return err
}

func (m *mixture) create(ctx context.Context, operation string, how fleetapi.Change) {
	m.mu.Lock()
	m.n++
	name := fmt.Sprintf("mixed%07d", m.n)
	m.mu.Unlock()
	err := m.took.do(operation, func() error {
		vm, err := m.api.CreateVM(ctx, small(name), how)
		if err == nil && vm.Host == "" {
			err = errors.New("no host has room: the fleet is too full for this measurement")
		}
		return err
	})
	if err == nil && !how.DryRun {
		m.mu.Lock()
		m.made = append(m.made, madeVM{name, time.Now()})
		m.mu.Unlock()
	}
}

// remove deletes the oldest VM that was made.
func (m *mixture) remove(ctx context.Context) {
	m.mu.Lock()
	if len(m.made) == 0 || time.Since(m.made[0].at) < deleteAfter {
		m.mu.Unlock()
		return
	}
	name := m.made[0].name
	m.made = m.made[1:]
	m.mu.Unlock()
	_ = m.took.do("delete", func() error { // noted
		_, err := m.api.DeleteVM(ctx, name, fleetapi.Change{})
		return err
	})
}

// report adds how long the requests took.
func (m *mixture) report(r *report) error {
	l := m.took
	all := l.all()
	if l.failed > 0 || len(all) == 0 {
		return fmt.Errorf("%d of %d requests of users failed, first: %w", l.failed, l.failed+len(all), l.why)
	}
	r.below("API meanwhile, p99 of all requests, ms", milliseconds(percentile(all, 99)), 20)
	for _, operation := range slices.Sorted(maps.Keys(l.by)) {
		took := l.by[operation]
		r.add(fmt.Sprintf("  %s (%d): median, ms", operation, len(took)), "%.1f", milliseconds(percentile(took, 50)))
		r.add("    p99, ms", "%.1f", milliseconds(percentile(took, 99)))
	}
	return nil
}
