package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/tools/simhost"
)

// oneHost is the name of the run against the API that a daemon serves on its socket. It is served by HTTP here, since
// schemathesis knows no sockets.
const oneHost = "one-host"

// observer is a daemon that only observes.
type observer struct {
	on    *operate.Host
	began time.Time
}

func (o observer) Status(context.Context) (status.Status, error) {
	return status.Status{Host: "fake", Started: o.began}, nil
}

func (o observer) Inventory(ctx context.Context) (inventory.Host, error) { return o.on.Observe(ctx) }

func (o observer) Policy(context.Context) (policy.Policy, error) {
	return policy.Policy{}.WithDefaults(), nil
}

// runOneHost runs schemathesis over the API of one host. Errors that the service logs fail the run.
func (o options) runOneHost(ctx context.Context, folder string, limit time.Duration, seed int) error {
	on, err := simhost.Join(fake.MustNew(machine), folder)
	if err != nil {
		return err
	}
	var logged atomic.Int64
	log, err := os.Create(filepath.Join(folder, oneHost+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	life, end := context.WithCancel(ctx)
	defer end()
	service := fleetofone.New(life, fleetofone.Options{Local: on, Daemon: observer{on, time.Now()},
		Machines: simhost.Machines{}, Version: "apitest", Grace: 100 * time.Millisecond, Every: 100 * time.Millisecond,
		Log: slog.New(counting{slog.NewTextHandler(log, nil), &logged})})
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: service, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	url := "http://" + l.Addr().String()
	err = o.testOneHost(life, url, folder, limit, seed)
	end()
	service.Wait()
	err = errors.Join(err, server.Close())
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if n := logged.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("the service has logged %d errors", n))
	}
	return err
}

// testOneHost runs schemathesis, while the host's VMs are made again that it deletes.
func (o options) testOneHost(ctx context.Context, url, folder string, limit time.Duration, seed int) error {
	client, err := fleetapi.NewClient(fleetapi.Config{URL: url})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, end := context.WithCancel(ctx)
	restored := make(chan struct{})
	go func() {
		defer close(restored)
		restoreVMs(ctx, client)
	}()
	defer func() { end(); <-restored }()
	needFleet, err := operationsOfFleets(ctx, url)
	if err != nil {
		return err
	}
	return schemathesis(ctx, o.schemathesis, folder, run{name: oneHost, url: url, limit: limit, with: map[string]any{
		"Seed": seed, "Hosts": `"fake"`, "Spares": `"fake"`, "VMs": quoted(vmName, vms), "NeedFleet": needFleet}})
}

// restoreVMs creates the VMs that are missing, until ctx ends.
func restoreVMs(ctx context.Context, client *fleetapi.Client) {
	for ctx.Err() == nil {
		for i := range vms {
			if _, err := client.VM(ctx, vmName(i)); err != nil {
				spec := guest.Spec{Name: vmName(i), VCPUs: 1, Memory: 256 << 20}
				_, _ = client.CreateVM(ctx, fleetapi.VMCreate{Spec: spec}, fleetapi.Change{}) // it is repeated
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// operationsOfFleets lists the operations to which the document allows the answer 501: they need a fleet.
func operationsOfFleets(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/openapi.json", nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	var doc struct {
		Paths map[string]map[string]struct {
			ID        string         `json:"operationId"`
			Responses map[string]any `json:"responses"`
		} `json:"paths"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&doc); err != nil {
		return "", fmt.Errorf("%s/openapi.json: %w", url, err)
	}
	var ids []string
	for _, path := range doc.Paths {
		for _, op := range path {
			if _, ok := op.Responses["501"]; ok {
				ids = append(ids, fmt.Sprintf("%q", op.ID))
			}
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ", "), nil
}

// counting counts errors in a log.
type counting struct {
	slog.Handler

	errors *atomic.Int64
}

// Handle implements slog.Handler.
func (c counting) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		c.errors.Add(1)
	}
	return c.Handler.Handle(ctx, r)
}
