package rest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// maxBody limits the body of a request: a VM with its cloud-init data fits.
const maxBody = 1 << 20

//go:embed docs.html
var docsPage []byte

// Handler serves the API of a fleet's server, its OpenAPI document at /openapi.json, and a page that shows it at /docs.
func Handler(s Service, log *slog.Logger) (http.Handler, error) {
	return handler(&routes{service: s, log: log, description: description})
}

// HostHandler serves the API for one host, without a fleet: the same operations with the same documents. Those that
// need a fleet are answered with a problem.
func HostHandler(s HostService, log *slog.Logger) (http.Handler, error) {
	r := &routes{log: log, description: oneHost + description, alone: true}
	r.service = struct {
		HostService
		FleetService // nil: add does not call it
	}{HostService: s}
	return handler(r)
}

// handler serves the routes.
func handler(r *routes) (http.Handler, error) {
	mux := http.NewServeMux()
	registry := huma.NewMapRegistry("#/components/schemas/", schemaName)
	aliases(registry)
	config := configOf(registry, r.description)
	if r.alone { // the right to open the socket is all that it needs
		config.Components.SecuritySchemes = nil
	}
	r.api, r.added = humago.New(mux, config), map[string]bool{}
	r.hosts()
	r.vms()
	r.plans()
	r.access()
	methods := map[string][]string{}
	for _, op := range fleetapi.Operations() {
		if !r.added[op.ID] {
			return nil, fmt.Errorf("operation %s has no handler", op.ID)
		}
		methods[op.Path] = append(methods[op.Path], op.Method)
	}
	r.problems()
	if err := narrow(registry.Map()); err != nil {
		return nil, err
	}
	document, err := json.Marshal(r.api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("making the OpenAPI document: %w", err)
	}
	mux.HandleFunc("GET /openapi.json", static("application/openapi+json", document))
	mux.HandleFunc("GET /docs", static("text/html; charset=utf-8", docsPage))
	for path, allowed := range methods {
		mux.HandleFunc(path, otherMethod(allowed))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		write(w, fleetapi.NewProblem(fleetapi.ProblemNotFound, r.URL.Path+" is no path of the API: see /docs"))
	})
	return mux, nil
}

func configOf(registry huma.Registry, text string) huma.Config {
	return huma.Config{
		OpenAPI: &huma.OpenAPI{OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Numavisor fleet API", Version: "v1", Description: text},
			Components: &huma.Components{Schemas: registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}}},
		Formats: huma.DefaultFormats, DefaultFormat: "application/json", RejectUnknownQueryParameters: true,
		Transformers: []huma.Transformer{problemOf},
	}
}

// oneHost begins the description of the API of one host.
const oneHost = `This is the daemon of one host: it does the operations for this host, for the users that may open ` +
	`its socket, without tokens. Operations that need a fleet are answered with status 501. `

const description = `Hosts, VMs and their placements in a fleet of NUMA hosts. ` +
	`A change with If-Match is made only to that revision; a repeated request to create with the same ` +
	`Idempotency-Key returns the first one's result. Errors are problem documents (RFC 9457). While the server ` +
	`does not reach enough of the others, the header ` + fleetapi.AgeHeader + ` of a read says for how many seconds ` +
	`it could not confirm its records, and changes are answered with status 503.`

func static(contentType string, data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy",
			"default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "+
				"frame-ancestors 'none'; base-uri 'none'")
		_, _ = w.Write(data) // it fails only if the client has closed the connection
	}
}

func otherMethod(allowed []string) http.HandlerFunc {
	if slices.Contains(allowed, http.MethodGet) {
		allowed = append(allowed, http.MethodHead)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		write(w, &fleetapi.Problem{Type: fleetapi.ProblemOther, Status: http.StatusMethodNotAllowed,
			Title: http.StatusText(http.StatusMethodNotAllowed),
			Detail: fleetapi.HideTokens(fmt.Sprintf("%s %s: allowed are %s", r.Method, r.URL.Path,
				strings.Join(allowed, ", ")))})
	}
}

// write answers with a problem.
func write(w http.ResponseWriter, p *fleetapi.Problem) {
	w.Header().Set("Content-Type", p.ContentType(""))
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // it fails only if the client has closed the connection
}

// schemaName names types of other packages by package and type: several have the same name.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := huma.DefaultSchemaNamer(t, hint)
	path := t.PkgPath()
	for _, plain := range []reflect.Type{reflect.TypeFor[int](), reflect.TypeFor[fleetapi.VM](),
		reflect.TypeFor[huma.ErrorModel]()} {
		if path == plain.PkgPath() {
			return name
		}
	}
	last := path[strings.LastIndex(path, "/")+1:]
	return strings.ToUpper(last[:1]) + last[1:] + name
}

// problemOf gives the errors that huma finds the form of all others.
func problemOf(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := &fleetapi.Problem{Type: fleetapi.ProblemInvalid, Title: m.Title, Status: m.Status,
		Detail: fleetapi.HideTokens(m.Detail)}
	for _, e := range m.Errors {
		d := fleetapi.ProblemDetail{Message: fleetapi.HideTokens(e.Message), Location: fleetapi.HideTokens(e.Location)}
		if !strings.HasPrefix(e.Location, "body") { // a body may have secrets
			d.Value = e.Value
			if value, ok := e.Value.(string); ok {
				d.Value = fleetapi.HideTokens(value)
			}
		}
		p.Errors = append(p.Errors, d)
	}
	return p, nil
}

// routes registers operations.
type routes struct {
	api     huma.API
	service Service
	log     *slog.Logger
	added   map[string]bool
	// alone says that the service is for one host; description is that of the document.
	alone       bool
	description string
}

// callKey is the key of a context's Call.
type callKey struct{}

// add registers the handler of an operation of the table.
func add[I, O any](r *routes, id string, handle func(ctx context.Context, c Call, in *I) (*O, error)) {
	op, known := fleetapi.OperationByID(id)
	if !known {
		panic("operation " + id + " is not in the table")
	}
	r.added[id] = true
	h := huma.Operation{OperationID: op.ID, Method: op.Method, Path: op.Path, Summary: op.What,
		Tags: []string{op.Tag}, DefaultStatus: op.Status, MaxBodyBytes: maxBody,
		BodyReadTimeout: -1, // the server has a deadline: see strict
		Middlewares:     huma.Middlewares{r.authenticate(op), strict},
	}
	if op.Role != "" && !r.alone {
		h.Security = []map[string][]string{{"token": {}}}
		h.Description = "Needs the role " + string(op.Role) + "."
		if op.Scope == fleetapi.OfFleet {
			h.Description = "Needs the role " + string(op.Role) + " in all projects."
		}
	}
	huma.Register(r.api, h, func(ctx context.Context, in *I) (*O, error) {
		call, _ := ctx.Value(callKey{}).(Call)
		if r.alone && op.Fleet {
			return nil, needsFleet(&op)
		}
		if e, ok := any(in).(edits); ok {
			if err := e.fill(&call); err != nil {
				return nil, err
			}
		}
		out, err := handle(ctx, call, in)
		return out, r.problem(&op, err)
	})
}

// needsFleet answers an operation that one host does not do.
func needsFleet(op *fleetapi.Operation) error {
	return fleetapi.NewProblem(fleetapi.ProblemNeedsFleet, op.ID+" needs a fleet, and this is the daemon of one host: "+
		"ask the server of the host's fleet; 'numavisor server init' makes a fleet")
}

// problem hides errors that are not for users, and logs them.
func (r *routes) problem(op *fleetapi.Operation, err error) error {
	var p *fleetapi.Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return p
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fleetapi.NewProblem(fleetapi.ProblemUnavailable, "the request was not finished in time; "+
			"a change may have been made")
	}
	r.log.Error("a request failed", "operation", op.ID, "error", err)
	return fleetapi.NewProblem(fleetapi.ProblemOther, "the server failed: its log has the reason")
}

// authenticate finds the user of a request and checks the role.
func (r *routes) authenticate(op fleetapi.Operation) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		_, w := humago.Unwrap(ctx)
		call := Call{Operation: op}
		if op.Role != "" {
			token, ok := strings.CutPrefix(ctx.Header("Authorization"), "Bearer ")
			if !ok {
				token = ""
			}
			user, err := r.service.Authenticate(ctx.Context(), token)
			if err != nil {
				r.log.Error("a token was not checked", "error", err)
				write(w, fleetapi.NewProblem(fleetapi.ProblemUnavailable, "the token cannot be checked now"))
				return
			}
			call.User = user
			if call.User == nil {
				write(w, &fleetapi.Problem{Type: fleetapi.ProblemRole, Status: http.StatusUnauthorized,
					Title:  http.StatusText(http.StatusUnauthorized),
					Detail: "a valid token is needed: send 'Authorization: Bearer TOKEN'"})
				return
			}
			if !op.Allows(call.User, "") {
				needed := string(op.Role)
				if op.Scope == fleetapi.OfFleet {
					needed += " in all projects"
				}
				write(w, fleetapi.NewProblem(fleetapi.ProblemRole,
					fmt.Sprintf("user %s is %s of %s: %s needs the role %s",
						call.User.Name, call.User.Role, projectsText(call.User), op.ID, needed)))
				return
			}
		}
		next(huma.WithValue(ctx, callKey{}, call))
	}
}

func projectsText(u *fleetapi.User) string {
	if len(u.Projects) == 0 {
		return "no project"
	}
	return strings.Join(u.Projects, ", ")
}

// edits are inputs that say how a change is made.
type edits interface{ fill(c *Call) error }

// Precondition is the header that limits a change to one revision.
type Precondition struct {
	IfMatch string `header:"If-Match" pattern:"^([*]|\"[0-9]{1,18}\")$" doc:"change only the revision with this ETag"`
}

func (p *Precondition) fill(c *Call) error {
	if p.IfMatch == "" || p.IfMatch == "*" {
		return nil
	}
	text, err := strconv.Unquote(p.IfMatch)
	if err == nil {
		c.Revision, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || c.Revision <= 0 {
		return fleetapi.NewProblem(fleetapi.ProblemChanged,
			"If-Match: allowed is the ETag of one answer, such as \"7\"")
	}
	return nil
}

// Dry is the query of a dry run.
type Dry struct {
	DryRun bool `query:"dry_run" doc:"return what would happen, and change nothing"`
}

// Edit is how a VM is changed.
type Edit struct {
	Precondition
	Dry
}

func (e *Edit) fill(c *Call) error {
	c.DryRun = e.DryRun
	return e.Precondition.fill(c)
}

// Creation is how something is created.
type Creation struct {
	Dry
	Key string `header:"Idempotency-Key" maxLength:"200" doc:"a repeated request returns the first result"`
}

func (k *Creation) fill(c *Call) error { //nolint:unparam // edits.fill
	c.DryRun, c.Key = k.DryRun, k.Key
	return nil
}

// Paging selects a page of a list.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Cursor string `query:"cursor" maxLength:"300" doc:"next of the page before"`
}

func (p *Paging) page() Page { return Page{p.Limit, p.Cursor} }

// Tagged is a document with its entity tag.
type Tagged[T any] struct {
	ETag string `header:"ETag"`
	Body T
}

// Plain is a document without an entity tag.
type Plain[T any] struct{ Body T }

// Made is a document that was created or, in a dry run, would be.
type Made[T any] struct {
	Status int
	ETag   string `header:"ETag"`
	Body   T
}

// Empty is an answer without a body.
type Empty struct{}

func etag(revision int64) string {
	if revision == 0 {
		return ""
	}
	return strconv.Quote(strconv.FormatInt(revision, 10))
}

func tagged[T any](v T, revision int64, err error) (*Tagged[T], error) {
	if err != nil {
		return nil, err
	}
	return &Tagged[T]{etag(revision), v}, nil
}

func plain[T any](v T, err error) (*Plain[T], error) {
	if err != nil {
		return nil, err
	}
	return &Plain[T]{v}, nil
}

func empty(err error) (*Empty, error) {
	if err != nil {
		return nil, err
	}
	return &Empty{}, nil
}
