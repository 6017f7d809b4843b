package fleetapi

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOperations_AreDistinctAndHaveRoles(t *testing.T) {
	ids, paths := map[string]bool{}, map[string]bool{}
	for _, op := range Operations() {
		if ids[op.ID] || paths[op.Method+op.Path] {
			t.Errorf("%s %s %s is in the table twice", op.ID, op.Method, op.Path)
		}
		ids[op.ID], paths[op.Method+op.Path] = true, true
		if op.Role == "" && op.ID != "info" {
			t.Errorf("%s needs no role", op.ID)
		}
		if op.Method != http.MethodGet && op.Role == Viewer {
			t.Errorf("%s changes something and needs only a viewer", op.ID)
		}
	}
}

func TestAllows_ByRoleAndProject(t *testing.T) {
	member := func(r Role, projects ...string) *User { return &User{Role: r, Projects: projects} }
	for _, test := range []struct {
		op      string
		user    *User
		project string
		want    bool
	}{
		{"info", nil, "", true},
		{"list-hosts", nil, "", false},
		{"list-hosts", member("", AllProjects), "", false},
		{"list-hosts", member("root", AllProjects), "", false},
		{"list-hosts", member(Viewer), "", true},
		{"get-vm", member(Viewer, "web"), "web", true},
		{"get-vm", member(Viewer, "web"), "db", false},
		{"delete-vm", member(Viewer, "web"), "web", false},
		{"delete-vm", member(Operator, "web"), "web", true},
		{"delete-vm", member(Operator, AllProjects), "db", true},
		{"cordon-host", member(Operator, "web"), "", false},
		{"cordon-host", member(Operator, AllProjects), "", true},
		{"declare-dead", member(Operator, AllProjects), "", false},
		{"declare-dead", member(Admin), "", true},
	} {
		op, known := OperationByID(test.op)
		if !known {
			t.Fatalf("no operation %s", test.op)
		}
		if got := op.Allows(test.user, test.project); got != test.want {
			t.Errorf("%s by %+v in %q: got %v, want %v", test.op, test.user, test.project, got, test.want)
		}
	}
}

// answerWith serves one answer and returns a client of it and the requests that came.
func answerWith(t *testing.T, status int, body string) (*Client, *[]*http.Request) {
	t.Helper()
	var requests []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	c, err := NewClient(Config{URL: s.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, &requests
}

func TestClient_SendsHeadersAndQuery(t *testing.T) {
	c, requests := answerWith(t, http.StatusOK, `{"name":"a/b","state":"stopped"}`)
	vm, err := c.StopVM(t.Context(), "a/b", Change{DryRun: true, Revision: 7, Key: "k"})
	if err != nil || vm.Name != "a/b" || vm.State != VMStopped {
		t.Fatalf("got %+v, %v", vm, err)
	}
	r := (*requests)[0]
	if r.Method != http.MethodPost || r.URL.EscapedPath() != "/v1/vms/a%2Fb/stop" || r.URL.RawQuery != "dry_run=true" ||
		r.Header.Get("If-Match") != `"7"` || r.Header.Get("Idempotency-Key") != "k" ||
		r.Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("got %s %s, %v", r.Method, r.URL, r.Header)
	}
}

func TestClient_ReturnsProblems(t *testing.T) {
	for _, test := range []struct {
		body, want string
		kind       ProblemType
	}{
		{`{"type":"urn:numavisor:quota","title":"Forbidden","status":403,"detail":"too much"}`, "too much",
			ProblemQuota},
		{`{"type":"about:blank","title":"Forbidden","status":403,"errors":[{"message":"m","location":"body"}]}`,
			"Forbidden; body: m", ProblemOther},
		{`<html>`, "Forbidden", ProblemOther},
		{``, "Forbidden", ProblemOther},
	} {
		c, _ := answerWith(t, http.StatusForbidden, test.body)
		_, err := c.VM(t.Context(), "a")
		var p *Problem
		if !errors.As(err, &p) || p.Status != http.StatusForbidden || p.Type != test.kind || p.Error() != test.want {
			t.Errorf("%q: got %#v (%v)", test.body, p, err)
		}
	}
}

func TestHideTokens(t *testing.T) {
	for text, want := range map[string]string{
		"there is no VM nvu_AbC-_0123456789": "there is no VM nvu_(hidden)",
		"nvj_0123456789 and nvu_9876543210.": "nvj_(hidden) and nvu_(hidden).",
		"host nvu_1, nvidia_driver_version":  "host nvu_1, nvidia_driver_version",
	} {
		if got := HideTokens(text); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
	if p := NewProblem(ProblemNotFound, "there is no VM nvu_0123456789"); strings.Contains(p.Error(), "01234") {
		t.Errorf("got %v", p)
	}
}

func TestClient_ReportsThatNobodyAnswersWithoutTheToken(t *testing.T) {
	c, err := NewClient(Config{URL: "http://127.0.0.1:1", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.VM(t.Context(), "a")
	if !errors.Is(err, ErrNoAnswer) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestClient_ReadsEvents(t *testing.T) {
	c, _ := answerWith(t, http.StatusOK, ": hello\n\nid: 3\ndata: {\"revision\":3,\"kind\":\"vm\",\"name\":\"a\"}\n\n"+
		"data: {\"revision\":4,\n"+"data: \"kind\":\"host\",\"name\":\"h\",\"deleted\":true}\n\ndata: {")
	var got []string
	for e, err := range c.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(e.Kind)+" "+e.Name)
	}
	if strings.Join(got, ", ") != "vm a, host h" {
		t.Errorf("got %q", got)
	}
}

func TestNewClient_RefusesOtherAddresses(t *testing.T) {
	for _, u := range []string{"", "server:7", "ftp://server", "://"} {
		if _, err := NewClient(Config{URL: u}); err == nil {
			t.Errorf("%q was accepted", u)
		}
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add("data: {}\n\n")
	f.Add("data: {\"vm\":{\"spec\":{\"memory\":\"9E\"}}}\n\n")
	f.Fuzz(func(_ *testing.T, s string) {
		_ = readEvents(strings.NewReader(s), func(Event, error) bool { return true })
	})
}
