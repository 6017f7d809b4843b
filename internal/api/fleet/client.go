package fleetapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
)

// ErrNoAnswer means that the server could not be reached or did not answer in time. A change may still
// have been made.
var ErrNoAnswer = errors.New("the server does not answer")

// answerTime limits one request. Creating a VM waits for the decision and a write of the store.
const answerTime = 30 * time.Second

// maxAnswer limits how much of an answer is read.
const maxAnswer = 64 << 20

// Config says how to reach a server.
type Config struct {
	// URL is https://HOST:PORT, or unix:///PATH for a socket.
	URL   string
	Token string
	// CA has the certificates that sign the server's, PEM; empty: those of the system.
	CA []byte
	// Old is called when an answer has AgeHeader, with its value; nil: nothing is.
	Old func(age time.Duration)
}

// AgeHeader is a header of answers to reads while the server does not reach enough of the others: for how many seconds
// it could not confirm that its records are current.
const AgeHeader = "Numavisor-Records-Age"

// Client sends requests to a server. An error is a *Problem if the server answered it.
type Client struct {
	base  string
	token string
	http  *http.Client
	old   func(age time.Duration)
}

// NewClient returns a client. It does not connect yet.
func NewClient(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "unix" {
		return nil, fmt.Errorf("server %q: allowed are https://HOST:PORT and unix:///PATH", c.URL)
	}
	t := &http.Transport{ForceAttemptHTTP2: true}
	base := strings.TrimSuffix(c.URL, "/")
	if u.Scheme == "unix" {
		base = "http://server"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", u.Path)
		}
	}
	if len(c.CA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(c.CA) {
			return nil, fmt.Errorf("the CA of server %s: no certificate in PEM form", c.URL)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
	}
	return &Client{base: base, token: c.Token, http: &http.Client{Transport: t}, old: c.Old}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Change says how a request that changes something is made.
type Change struct {
	// DryRun returns what would happen, and changes nothing.
	DryRun bool
	// Revision makes the change only to this revision; 0: to any.
	Revision int64
	// Key makes a repeated request to create return the first one's result.
	Key string
}

// Filter selects VMs.
type Filter struct {
	Project, Host string
	State         VMState
	Label         string // KEY=VALUE or KEY
}

// Info returns the versions of the server.
func (c *Client) Info(ctx context.Context) (i ServerInfo, err error) {
	return i, c.call(ctx, "info", nil, nil, &i)
}

// Me returns the user of the client's token.
func (c *Client) Me(ctx context.Context) (u User, err error) {
	return u, c.call(ctx, "whoami", nil, nil, &u)
}

// Hosts returns all hosts.
func (c *Client) Hosts(ctx context.Context) ([]Host, error) {
	var all []Host
	cursor := ""
	for {
		var page Hosts
		q := url.Values{"limit": {"1000"}, "cursor": {cursor}}
		if err := c.send(ctx, request{op: "list-hosts", query: q}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Hosts...)
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// Host returns a host.
func (c *Client) Host(ctx context.Context, name string) (h Host, err error) {
	return h, c.call(ctx, "get-host", []string{name}, nil, &h)
}

// Nodes returns the nodes of a host.
func (c *Client) Nodes(ctx context.Context, host string) (n Nodes, err error) {
	return n, c.call(ctx, "list-nodes", []string{host}, nil, &n)
}

// Inventory returns the inventory that a host reported.
func (c *Client) Inventory(ctx context.Context, host string) (h inventory.Host, err error) {
	return h, c.call(ctx, "get-inventory", []string{host}, nil, &h)
}

// EditHost changes what operators say about a host.
func (c *Client) EditHost(ctx context.Context, name string, e HostEdit, how Change) (h Host, err error) {
	return h, c.send(ctx, request{op: "edit-host", path: []string{name}, body: e, how: how}, &h)
}

// Cordon puts no new VMs on a host.
func (c *Client) Cordon(ctx context.Context, name string) (h Host, err error) {
	return h, c.call(ctx, "cordon-host", []string{name}, nil, &h)
}

// Uncordon puts VMs on a host again, and ends its draining.
func (c *Client) Uncordon(ctx context.Context, name string) (h Host, err error) {
	return h, c.call(ctx, "uncordon-host", []string{name}, nil, &h)
}

// Drain migrates all VMs of a host to other hosts.
func (c *Client) Drain(ctx context.Context, name string, how fleet.MigrationOptions) (h Host, err error) {
	return h, c.call(ctx, "drain-host", []string{name}, HostDrain{how}, &h)
}

// DeclareDead declares that a host does not run its VMs and will not run them again.
func (c *Client) DeclareDead(ctx context.Context, name, why string) (h Host, err error) {
	return h, c.call(ctx, "declare-dead", []string{name}, Reason{why}, &h)
}

// DeclareAlive uses a host again that was declared dead.
func (c *Client) DeclareAlive(ctx context.Context, name string) (h Host, err error) {
	return h, c.call(ctx, "declare-alive", []string{name}, nil, &h)
}

// RemoveHost removes a host without VMs from the fleet.
func (c *Client) RemoveHost(ctx context.Context, name string) error {
	return c.call(ctx, "remove-host", []string{name}, nil, nil)
}

// CreateJoin makes a one-time token with which a host joins.
func (c *Client) CreateJoin(ctx context.Context, j JoinCreate) (n NewJoin, err error) {
	return n, c.call(ctx, "create-join", nil, j, &n)
}

// CreateVM asks for a VM. Without a free host the VM is pending.
func (c *Client) CreateVM(ctx context.Context, v VMCreate, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "create-vm", body: v, how: how}, &vm)
}

// AdoptVM takes a VM into the fleet that a host runs already.
func (c *Client) AdoptVM(ctx context.Context, a VMAdopt, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "adopt-vm", body: a, how: how}, &vm)
}

// VMs returns all VMs of a filter.
func (c *Client) VMs(ctx context.Context, f Filter) ([]VM, error) {
	var all []VM
	cursor := ""
	for {
		var page VMs
		q := url.Values{"limit": {"1000"}, "cursor": {cursor}, "project": {f.Project}, "host": {f.Host},
			"state": {string(f.State)}, "label": {f.Label}}
		if err := c.send(ctx, request{op: "list-vms", query: q}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.VMs...)
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// VM returns a VM.
func (c *Client) VM(ctx context.Context, name string) (vm VM, err error) {
	return vm, c.call(ctx, "get-vm", []string{name}, nil, &vm)
}

// Placement returns the host and the nodes of a VM, and why.
func (c *Client) Placement(ctx context.Context, name string) (p Placement, err error) {
	return p, c.call(ctx, "get-placement", []string{name}, nil, &p)
}

// StartVM starts a VM.
func (c *Client) StartVM(ctx context.Context, name string, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "start-vm", path: []string{name}, how: how}, &vm)
}

// StopVM stops a VM.
func (c *Client) StopVM(ctx context.Context, name string, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "stop-vm", path: []string{name}, how: how}, &vm)
}

// BindVM chooses the nodes of a VM again, on its host.
func (c *Client) BindVM(ctx context.Context, name string, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "bind-vm", path: []string{name}, how: how}, &vm)
}

// ResizeVM changes the size of a VM that is stopped.
func (c *Client) ResizeVM(ctx context.Context, name string, r VMResize, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "resize-vm", path: []string{name}, body: r, how: how}, &vm)
}

// MigrateVM migrates a running VM to another host.
func (c *Client) MigrateVM(ctx context.Context, name string, m VMMigrate, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "migrate-vm", path: []string{name}, body: m, how: how}, &vm)
}

// DeleteVM removes a VM from its host, then from the fleet.
func (c *Client) DeleteVM(ctx context.Context, name string, how Change) (vm VM, err error) {
	return vm, c.send(ctx, request{op: "delete-vm", path: []string{name}, how: how}, &vm)
}

// Plan returns the migrations that would relieve hosts.
func (c *Client) Plan(ctx context.Context) (p Plan, err error) {
	return p, c.call(ctx, "get-plan", nil, nil, &p)
}

// Moves returns a page of migrations, the newest first; vm is empty for those of all VMs.
func (c *Client) Moves(ctx context.Context, vm string, limit int, cursor string) (m Moves, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}, "vm": {vm}}
	return m, c.send(ctx, request{op: "list-moves", query: q}, &m)
}

// History returns a page of what was done, the newest first; vm is empty for all VMs and hosts.
func (c *Client) History(ctx context.Context, vm string, limit int, cursor string) (h History, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}, "vm": {vm}}
	return h, c.send(ctx, request{op: "list-history", query: q}, &h)
}

// Headroom says for each host whether its VMs would fit on the others.
func (c *Client) Headroom(ctx context.Context) (h Headroom, err error) {
	for cursor := ""; ; {
		var page Headroom
		q := url.Values{"limit": {"20"}, "cursor": {cursor}} // a host may take a second
		if err := c.send(ctx, request{op: "get-headroom", query: q}, &page); err != nil {
			return h, err
		}
		h.Hosts = append(h.Hosts, page.Hosts...)
		if cursor = page.Next; cursor == "" {
			return h, nil
		}
	}
}

// Alarms returns the alarms of all hosts.
func (c *Client) Alarms(ctx context.Context) (a Alarms, err error) {
	return a, c.call(ctx, "list-alarms", nil, nil, &a)
}

// Projects returns the projects of the user.
func (c *Client) Projects(ctx context.Context) (p Projects, err error) {
	return p, c.call(ctx, "list-projects", nil, nil, &p)
}

// PutProject creates a project or changes its quotas.
func (c *Client) PutProject(ctx context.Context, name string, e ProjectEdit) (p Project, err error) {
	return p, c.call(ctx, "put-project", []string{name}, e, &p)
}

// DeleteProject removes a project without VMs.
func (c *Client) DeleteProject(ctx context.Context, name string) error {
	return c.call(ctx, "delete-project", []string{name}, nil, nil)
}

// Users returns all users.
func (c *Client) Users(ctx context.Context) (u Users, err error) {
	return u, c.call(ctx, "list-users", nil, nil, &u)
}

// PutUser creates a user or changes role and projects.
func (c *Client) PutUser(ctx context.Context, name string, e UserEdit) (u User, err error) {
	return u, c.call(ctx, "put-user", []string{name}, e, &u)
}

// DeleteUser removes a user and the user's tokens.
func (c *Client) DeleteUser(ctx context.Context, name string) error {
	return c.call(ctx, "delete-user", []string{name}, nil, nil)
}

// CreateToken makes a token for a user. Its secret is shown once.
func (c *Client) CreateToken(ctx context.Context, user string, t TokenCreate) (n NewToken, err error) {
	return n, c.call(ctx, "create-token", []string{user}, t, &n)
}

// DeleteToken revokes a token.
func (c *Client) DeleteToken(ctx context.Context, user, id string) error {
	return c.call(ctx, "delete-token", []string{user, id}, nil, nil)
}

// Audit returns a page of the audit, the newest first.
func (c *Client) Audit(ctx context.Context, limit int, cursor string) (a Audit, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}}
	return a, c.send(ctx, request{op: "list-audit", query: q}, &a)
}

// Events follows changes of hosts and VMs until ctx ends or the server closes the stream; the
// last pair has the error.
func (c *Client) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		answer, err := c.open(ctx, request{op: "watch-events"})
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusOK {
			yield(Event{}, problemOf(answer))
			return
		}
		if err := readEvents(answer.Body, yield); err != nil {
			yield(Event{}, err)
		}
	}
}

// request is one request to make.
type request struct {
	op    string
	path  []string // values of the operation's parameters
	query url.Values
	body  any
	how   Change
}

func (c *Client) call(ctx context.Context, op string, path []string, body, into any) error {
	return c.send(ctx, request{op: op, path: path, body: body}, into)
}

// send makes a request and decodes its answer.
func (c *Client) send(ctx context.Context, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= 300 {
		return problemOf(answer)
	}
	if into == nil || answer.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("%s: the answer of the server cannot be decoded: %w; "+
			"check that it has the same version", r.op, err)
	}
	return nil
}

// open makes a request and returns its answer.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	op, known := OperationByID(r.op)
	if !known {
		return nil, fmt.Errorf("%s is no operation of the API", r.op)
	}
	var body io.Reader = http.NoBody
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encoding the request %s: %w", r.op, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, op.Method, c.base+fill(op.Path, r.path)+queryOf(&r), body)
	if err != nil {
		return nil, fmt.Errorf("making the request %s: %w", r.op, err)
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if r.how.Revision > 0 {
		req.Header.Set("If-Match", strconv.Quote(strconv.FormatInt(r.how.Revision, 10)))
	}
	if r.how.Key != "" {
		req.Header.Set("Idempotency-Key", r.how.Key)
	}
	answer, err := c.http.Do(req)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err // the URL is in the text below
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrNoAnswer, c.base, err)
	}
	if seconds, err := strconv.Atoi(answer.Header.Get(AgeHeader)); err == nil && c.old != nil {
		c.old(time.Duration(seconds) * time.Second)
	}
	return answer, nil
}

// fill writes values into the parameters of a path.
func fill(path string, values []string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "{") && len(values) > 0 {
			parts[i], values = url.PathEscape(values[0]), values[1:]
		}
	}
	return strings.Join(parts, "/")
}

func queryOf(r *request) string {
	q := url.Values{}
	for name, values := range r.query {
		if !slices.Contains(values, "") {
			q[name] = values
		}
	}
	if r.how.DryRun {
		q.Set("dry_run", "true")
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// problemOf returns the error in an answer.
func problemOf(answer *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	p := &Problem{}
	if err != nil || json.Unmarshal(data, p) != nil || p.Status == 0 {
		p = &Problem{Type: ProblemOther, Title: http.StatusText(answer.StatusCode), Status: answer.StatusCode}
	}
	return p
}
