package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/tools/process"
)

// epoch is when all records were made.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// served is the server under test.
type served struct {
	path, folder   string // of its program; of its data, logs and what belongs to the daemons
	address, token string
	ca             []byte
	program        *process.Program
	sample         *drawn
}

func (s *served) data() string { return filepath.Join(s.folder, "server") }

// init makes the fleet as an operator does.
func (s *served) init(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.address = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, s.path, "init", "--data", s.data(), "--address",
		s.address).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s init: %w: %s", s.path, err, bytes.TrimSpace(out))
	}
	for line := range strings.Lines(string(out)) {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "nvu_") {
			s.token = t
		}
	}
	s.ca, err = os.ReadFile(filepath.Join(s.data(), "ca.pem"))
	return err
}

// start starts the server and returns how long it took until it answered a user.
func (s *served) start(ctx context.Context) (time.Duration, error) {
	s.program = &process.Program{Name: "server", Log: filepath.Join(s.folder, "server.log"),
		Args: []string{s.path, "--data", s.data(), "--listen", s.address}}
	began := time.Now()
	if err := s.program.Start(); err != nil { //nolint:contextcheck // it ends with this process
		return 0, err
	}
	c, err := s.client()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := c.Me(one)
		cancel()
		switch {
		case err == nil:
			return time.Since(began), nil
		case !s.program.Runs():
			return 0, errors.New("the server has ended: see server.log")
		case ctx.Err() != nil || time.Since(began) > 5*time.Minute:
			return 0, fmt.Errorf("the server does not answer: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends the server if it runs.
func (s *served) stop() {
	if s.program != nil {
		s.program.Quit()
	}
}

// client returns a user with a connection of its own.
func (s *served) client() (*fleetapi.Client, error) {
	return fleetapi.NewClient(fleetapi.Config{URL: "https://" + s.address, Token: s.token, CA: s.ca})
}

// records opens the records of the server, which does not run.
func (s *served) records(ctx context.Context) (*etcd.Store, error) {
	return etcd.Open(ctx, etcd.Config{Folder: filepath.Join(s.data(), "etcd")})
}

// fill writes the records of the fleet. All hosts count as reachable.
func (s *served) fill(ctx context.Context, d *drawn) (err error) {
	s.sample = d
	to, err := s.records(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	w := writer{ctx: ctx, to: to}
	for i := range d.hosts {
		name := hostName(i)
		w.put(store.Hosts+name, fleet.Host{Name: name, ID: hostID(name), Rack: fmt.Sprintf("rack%03d", i/40),
			Joined: epoch})
		w.put(store.Reports+name, fleet.Report{Taken: epoch, Program: "fleetload", Protocol: 1,
			Inventory: d.inventory(i)})
		w.put(store.Claims+name, struct{}{})
		w.put(store.Alive+name, struct{}{})
		for n := range d.vmsOn(i) {
			v := d.record(i, n)
			w.put(store.VMs+v.Name, v)
			w.put(store.Statuses+v.Name+"/"+name, fleet.VMStatus{Name: v.Name, Host: name, Generation: 1,
				Phase: fleet.PhaseRunning, Sequence: 1, Since: epoch, Placement: v.Placement})
			made := d.kinds[i%len(d.kinds)].decisions[n]
			w.put(store.Reasons+v.Name, fleetapi.Why{Summary: made.Why.Place.Summary, Text: made.Text(),
				Decided: epoch, Cost: made.Why.Cost, Fitted: made.Why.Fitted})
		}
	}
	w.commit()
	for range min(inLog, w.commits) { // etcd has its last transactions in memory: those above are larger than any other
		w.put(store.Claims+hostName(0), struct{}{})
		w.commit()
	}
	return w.err
}

// inLog is more transactions than etcd has in memory.
const inLog = 1600

// unreach makes all hosts unreachable whose daemons do not connect: the records of the server, which does not run,
// lose the keys that fill made.
func (s *served) unreach(ctx context.Context) (err error) {
	of, err := s.records(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, of.Close()) }()
	w := writer{ctx: ctx, to: of}
	for i := range s.sample.hosts {
		w.remove(store.Alive + hostName(i))
	}
	w.commit()
	return w.err
}

// writer writes many records in large transactions. After an error it writes nothing more.
type writer struct {
	ctx context.Context
	to  store.Store
	txn store.Txn
	n   int // bytes
	err error
	// commits counts the transactions.
	commits int
}

func (w *writer) put(key string, value any) {
	text, err := json.Marshal(value)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.room(len(text))
	w.txn.Put = append(w.txn.Put, store.Put{Key: key, Value: text})
	w.n += len(text)
}

func (w *writer) remove(key string) {
	w.room(0)
	w.txn.Delete = append(w.txn.Delete, key)
}

func (w *writer) room(size int) {
	if len(w.txn.Put)+len(w.txn.Delete) == store.MaxKeys || w.n+size > store.MaxSize/2 {
		w.commit()
	}
}

func (w *writer) commit() {
	if w.err == nil {
		_, w.err = w.to.Commit(w.ctx, w.txn)
	}
	w.txn, w.n, w.commits = store.Txn{}, 0, w.commits+1
}
