package fleetapi

import (
	"net/http"
	"regexp"
	"strings"
)

// Problem is the answer to a request that failed (RFC 9457). Code decides by Type, people read Detail.
type Problem struct { //nolint:errname // the name of RFC 9457
	Type   ProblemType     `json:"type"`
	Title  string          `json:"title"`
	Status int             `json:"status"`
	Detail string          `json:"detail,omitempty"`
	Errors []ProblemDetail `json:"errors,omitempty"`
}

// ProblemDetail is one of several errors in a request.
type ProblemDetail struct {
	Message  string `json:"message,omitempty"`
	Location string `json:"location,omitempty"` // such as body.spec.vcpus
	Value    any    `json:"value,omitempty"`
}

// ProblemType says what kind of problem it is, as a URI.
type ProblemType string

// Kinds of problems.
const (
	ProblemOther       ProblemType = "about:blank" // the status says it
	ProblemInvalid     ProblemType = "urn:numavisor:invalid"
	ProblemNoHost      ProblemType = "urn:numavisor:no-host" // no host has room for the VM
	ProblemQuota       ProblemType = "urn:numavisor:quota"
	ProblemExists      ProblemType = "urn:numavisor:exists"
	ProblemNotFound    ProblemType = "urn:numavisor:not-found"
	ProblemConflict    ProblemType = "urn:numavisor:conflict" // with the present state
	ProblemChanged     ProblemType = "urn:numavisor:changed"  // If-Match names another revision
	ProblemRole        ProblemType = "urn:numavisor:role"
	ProblemUnavailable ProblemType = "urn:numavisor:unavailable" // the store cannot write now
	// ProblemNeedsFleet: the daemon of one host does not do the operation, the server of a fleet does.
	ProblemNeedsFleet ProblemType = "urn:numavisor:needs-fleet"
	// ProblemFailed: the host did not carry the operation out; the detail says how it is left.
	ProblemFailed ProblemType = "urn:numavisor:failed"
)

// Words returns the kinds of problems.
func (ProblemType) Words() []string {
	return []string{string(ProblemOther), string(ProblemInvalid), string(ProblemNoHost), string(ProblemQuota),
		string(ProblemExists), string(ProblemNotFound), string(ProblemConflict), string(ProblemChanged),
		string(ProblemRole), string(ProblemUnavailable), string(ProblemNeedsFleet), string(ProblemFailed)}
}

var statuses = map[ProblemType]int{
	ProblemInvalid: http.StatusUnprocessableEntity, ProblemNoHost: http.StatusConflict,
	ProblemQuota: http.StatusForbidden, ProblemExists: http.StatusConflict, ProblemNotFound: http.StatusNotFound,
	ProblemConflict: http.StatusConflict, ProblemChanged: http.StatusPreconditionFailed,
	ProblemRole: http.StatusForbidden, ProblemUnavailable: http.StatusServiceUnavailable,
	ProblemNeedsFleet: http.StatusNotImplemented, ProblemFailed: http.StatusInternalServerError,
}

// NewProblem returns a problem of a kind.
func NewProblem(t ProblemType, detail string) *Problem {
	status := statuses[t]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return &Problem{Type: t, Title: http.StatusText(status), Status: status, Detail: HideTokens(detail)}
}

// tokens match users' and hosts' tokens: see package auth.
var tokens = regexp.MustCompile(`(nv[uj]_)[A-Za-z0-9_-]{6,}`)

// HideTokens replaces the secret part of tokens in a text: people paste them in wrong places, and a problem that
// quotes its cause ends in logs and in tickets.
func HideTokens(text string) string { return tokens.ReplaceAllString(text, "${1}(hidden)") }

// Error returns the detail, and each single error.
func (p *Problem) Error() string {
	parts := []string{p.Detail}
	if p.Detail == "" {
		parts[0] = p.Title
	}
	for _, e := range p.Errors {
		if e.Location == "" {
			parts = append(parts, e.Message)
		} else {
			parts = append(parts, e.Location+": "+e.Message)
		}
	}
	return strings.Join(parts, "; ")
}

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of a problem.
func (p *Problem) ContentType(string) string { return "application/problem+json" }
