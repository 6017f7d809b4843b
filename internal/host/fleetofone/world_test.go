package fleetofone_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib  = topology.MiB
	host = "fake" // the name of the host
)

// plain is a daemon that only observes.
type plain struct {
	w      operatetest.World
	mu     sync.Mutex
	status status.Status
}

func (d *plain) Status(context.Context) (status.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status, nil
}

func (d *plain) Inventory(ctx context.Context) (inventory.Host, error) {
	return d.w.Joined.Observe(ctx)
}

func (d *plain) Policy(context.Context) (policy.Policy, error) {
	return policy.Policy{}.WithDefaults(), nil
}

// machines makes VMs without disks, unless their machine has a kernel.
type machines struct{}

func (machines) Prepare(_ context.Context, v *fleet.VM) (operate.Renderer, func() error, error) {
	if v.Machine.Kernel != "" {
		return nil, nil, errors.New("path " + v.Machine.Kernel + " is not in a folder for files of VMs")
	}
	return operatetest.Render, nil, nil
}

// socket is a host whose API is served on a socket.
type socket struct {
	operatetest.World

	t       *testing.T
	daemon  *plain
	options fleetofone.Options
	service *fleetofone.Service
	path    string
	client  *fleetapi.Client
	http    *http.Client
	stop    func()
}

// serve serves a host; change may change the options.
func serve(t *testing.T, change func(*fleetofone.Options)) *socket {
	t.Helper()
	w := operatetest.New(t, operatetest.Square, t.TempDir())
	w.Joined.Clock, w.Joined.Sources.Now = time.Now, time.Now
	s := &socket{World: w, t: t, daemon: &plain{w: w, status: status.Status{Host: host, Started: time.Now()}}}
	s.options = fleetofone.Options{Local: &w.Joined.Host, Daemon: s.daemon, Machines: machines{}, Version: "test",
		User: func(context.Context) string { return "ann (uid 1000)" }, Log: slog.New(slog.DiscardHandler),
		Grace: time.Millisecond, Every: 5 * time.Millisecond}
	if change != nil {
		change(&s.options)
	}
	s.start()
	return s
}

// start starts the service, as a daemon's start does.
func (s *socket) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.service = fleetofone.New(ctx, s.options)
	s.path = filepath.Join(s.t.TempDir(), "daemon.sock")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: s.service, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.path)
	}}}
	if s.client, err = fleetapi.NewClient(fleetapi.Config{URL: "unix://" + s.path}); err != nil {
		s.t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		s.service.Wait()
		s.client.Close()
		s.http.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
	s.t.Cleanup(s.stop)
}

// vmOf is a request for a VM.
func vmOf(name string) fleetapi.VMCreate {
	return fleetapi.VMCreate{Spec: guest.Spec{Name: name, VCPUs: 2, Memory: 64 * mib}}
}

// create creates a VM that runs afterwards.
func (s *socket) create(name string) fleetapi.VM {
	s.t.Helper()
	vm, err := s.client.CreateVM(s.t.Context(), vmOf(name), fleetapi.Change{})
	if err != nil || vm.State != fleetapi.VMRunning {
		s.t.Fatalf("%+v: %v", vm, err)
	}
	return vm
}

// ask sends a request, and returns the status and the body of its answer.
func (s *socket) ask(method, path, body string, headers ...string) (int, string, http.Header) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://daemon"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(data), answer.Header
}

// problem returns the kind of problem in an error; empty: it is none.
func problem(err error) fleetapi.ProblemType {
	var p *fleetapi.Problem
	if !errors.As(err, &p) {
		return ""
	}
	return p.Type
}

// eventually waits until something holds.
func (s *socket) eventually(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	s.t.Fatalf("not in time: %s", what)
}

func text(v any) string {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}
