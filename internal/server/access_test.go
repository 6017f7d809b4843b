package server

import (
	"context"
	"encoding/json"

	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/topology"
)

// What each role may do, written down a second time: the table of operations must agree with it.
var (
	forAnybody = []string{"info"}
	forViewers = []string{"whoami", "list-hosts", "get-host", "list-nodes", "list-vms", "list-alarms", "watch-events",
		"list-projects", "list-moves", "list-history"}
	forMembers  = []string{"get-vm", "get-placement", "get-project"} // viewers of the project
	forOperator = []string{"create-vm", "start-vm", "stop-vm", "bind-vm", "resize-vm", "migrate-vm",
		"delete-vm"} // of the project
	forFleetV = []string{"get-inventory", "get-plan", "get-headroom"} // viewers of all projects
	forFleetO = []string{"edit-host", "cordon-host", "uncordon-host", "drain-host", "adopt-vm"}
	forAdmins = []string{"declare-dead", "declare-alive", "remove-host", "create-join", "put-project", "delete-project",
		"list-users", "get-user", "put-user", "delete-user", "create-token", "delete-token", "list-audit"}
)

func mayDo(id string, u *fleetapi.User) bool {
	if slices.Contains(forAnybody, id) {
		return true
	}
	if u == nil {
		return false
	}
	admin := u.Role == fleetapi.Admin
	operator := admin || u.Role == fleetapi.Operator
	all := admin || slices.Contains(u.Projects, "*")
	member := all || slices.Contains(u.Projects, "default")
	switch {
	case slices.Contains(forViewers, id):
		return true
	case slices.Contains(forMembers, id):
		return member
	case slices.Contains(forOperator, id):
		return operator && member
	case slices.Contains(forFleetV, id):
		return all
	case slices.Contains(forFleetO, id):
		return operator && all
	}
	return admin && slices.Contains(forAdmins, id)
}

// document is the part of the OpenAPI document that tests read.
type document struct {
	Paths map[string]map[string]struct {
		ID       string           `json:"operationId"`
		Security []map[string]any `json:"security"`
	} `json:"paths"`
}

func TestRoles_EveryOperationAsEveryRoleAndAsNobody(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	users := map[string]*fleetapi.User{}
	clients := map[string]string{"nobody": "", "forged": "nvu_forged"}
	for _, role := range []fleetapi.Role{fleetapi.Viewer, fleetapi.Operator, fleetapi.Admin} {
		for place, projects := range map[string][]string{"none": nil, "other": {"other"}, "member": {"default"},
			"all": {"*"}} {
			name := string(role) + "-" + place
			u, err := r.admin.PutUser(t.Context(), name, fleetapi.UserEdit{Role: role, Projects: projects})
			if err != nil {
				t.Fatal(err)
			}
			token, err := r.admin.CreateToken(t.Context(), name, fleetapi.TokenCreate{})
			if err != nil {
				t.Fatal(err)
			}
			users[name], clients[name] = &u, token.Secret
		}
	}
	web := r.anonymous()
	var doc document
	if status := ask(t, web, r.url, http.MethodGet, "/openapi.json", "", "", &doc); status != http.StatusOK {
		t.Fatal(status)
	}
	tried := 0
	for path, item := range doc.Paths {
		for method, op := range item {
			tried++
			for name, token := range clients {
				if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 1, topology.GiB),
					fleetapi.Change{}); err != nil &&
					problemType(err) != fleetapi.ProblemExists {
					t.Fatal(err)
				}
				status := ask(t, web, r.url, strings.ToUpper(method), fillPath(path), token, bodyOf(op.ID), nil)
				allowed := mayDo(op.ID, users[name])
				switch {
				case status >= 500:
					t.Errorf("%s as %s: status %d", op.ID, name, status)
				case users[name] == nil && !allowed && status != http.StatusUnauthorized:
					t.Errorf("%s as %s: status %d, want 401", op.ID, name, status)
				case users[name] != nil && !allowed && status != http.StatusForbidden && status != http.StatusNotFound:
					t.Errorf("%s as %s: status %d, want 403 or 404", op.ID, name, status)
				case allowed && (status == http.StatusUnauthorized || status == http.StatusForbidden):
					t.Errorf("%s as %s: status %d, and the role may do it", op.ID, name, status)
				case allowed && status == http.StatusNotFound && slices.Contains(slices.Concat(forMembers,
					forOperator), op.ID):
					t.Errorf("%s as %s: status 404, and the VM exists", op.ID, name)
				}
			}
		}
	}
	if want := len(fleetapi.Operations()); tried != want {
		t.Errorf("the OpenAPI document has %d operations, want %d", tried, want)
	}
}

func fillPath(path string) string {
	return strings.NewReplacer("{host}", "a", "{vm}", "vm", "{project}", "default", "{user}", "nobody-else",
		"{token}", "none").Replace(path)
}

func bodyOf(id string) string {
	return map[string]string{
		"edit-host": `{}`, "create-join": `{}`,
		"create-vm": `{"project":"default","spec":{"name":"vm2","vcpus":1,"memory":"1G"}}`,
		"adopt-vm":  `{"host":"a","name":"none","project":"default"}`, "resize-vm": `{"vcpus":1}`, "put-project": `{}`,
		"put-user": `{"role":"viewer"}`, "create-token": `{}`,
	}[id]
}

// ask makes a request, and returns the status of its answer. It does not wait for the end of streams.
func ask(t *testing.T, c *http.Client, url, method, path, token, body string, into any) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= 400 && answer.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s answers %s as %s", method, path, answer.Status, answer.Header.Get("Content-Type"))
	}
	if into != nil {
		if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return answer.StatusCode
}

func TestSecrets_AreNowhere(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	const secret = "swordfish"
	v := vmOf("vm", 1, topology.GiB)
	v.Machine = fleet.Machine{CloudInit: "password: " + secret}
	made, err := r.admin.CreateVM(t.Context(), v, fleetapi.Change{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := r.admin.CreateToken(t.Context(), "admin", fleetapi.TokenCreate{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.StopVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	v.Spec.Name = "v/m"
	_, wrong := r.admin.CreateVM(t.Context(), v, fleetapi.Change{})
	audit, err := r.admin.Audit(t.Context(), 100, "")
	if err != nil {
		t.Fatal(err)
	}
	users, err := r.admin.Users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := r.store.List(t.Context(), store.All)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(map[string]any{"vm": made, "audit": audit, "users": users, "error": wrong.Error(),
		"log": r.setup.log.String()})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), secret) || strings.Contains(string(shown), token.Secret) {
		t.Errorf("a secret is shown: %s", shown)
	}
	stored := false
	for _, record := range records {
		if strings.Contains(string(record.Value), token.Secret) {
			t.Errorf("%s has a token", record.Key)
		}
		stored = stored || strings.HasPrefix(record.Key, store.VMs) && strings.Contains(string(record.Value), secret)
	}
	if !stored {
		t.Error("the record of the VM lacks its cloud-init data")
	}
}

func TestTokens_ExpireAndAreRevoked(t *testing.T) {
	r := newRig(t)
	if _, err := r.admin.PutUser(t.Context(), "u", fleetapi.UserEdit{Role: fleetapi.Viewer}); err != nil {
		t.Fatal(err)
	}
	long, err := r.admin.CreateToken(t.Context(), "u", fleetapi.TokenCreate{})
	if err != nil {
		t.Fatal(err)
	}
	short, err := r.admin.CreateToken(t.Context(), "u", fleetapi.TokenCreate{Hours: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{long.Secret, short.Secret} {
		if u, err := r.server.Authenticate(t.Context(), token); err != nil || u == nil || u.Name != "u" {
			t.Fatalf("got %+v, %v", u, err)
		}
	}
	r.setup.offset.Store(int64(2 * time.Hour))
	if u, _ := r.server.Authenticate(t.Context(), short.Secret); u != nil {
		t.Error("the token has not expired")
	}
	if err := r.admin.DeleteToken(t.Context(), "u", long.ID); err != nil {
		t.Fatal(err)
	}
	if u, _ := r.server.Authenticate(t.Context(), long.Secret); u != nil {
		t.Error("the token was not revoked")
	}
	if err := r.admin.DeleteUser(t.Context(), "admin"); problemType(err) != fleetapi.ProblemConflict {
		t.Errorf("the last admin was deleted: %v", err)
	}
}

// Nothing leaves a fleet without an admin who can use the API.
func TestUsers_OneAdminStays(t *testing.T) {
	r := newRig(t)
	users, err := r.admin.Users(t.Context())
	if err != nil || len(users.Users) != 1 {
		t.Fatal(users, err)
	}
	if _, err := r.admin.PutUser(t.Context(), "second", fleetapi.UserEdit{Role: fleetapi.Admin}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.CreateToken(t.Context(), "second", fleetapi.TokenCreate{Hours: 1}); err != nil {
		t.Fatal(err)
	}
	r.setup.offset.Store(int64(2 * time.Hour)) // the token has expired
	_, demoted := r.admin.PutUser(t.Context(), "admin", fleetapi.UserEdit{Role: fleetapi.Viewer})
	for what, err := range map[string]error{
		"token revoked": r.admin.DeleteToken(t.Context(), "admin", users.Users[0].Tokens[0].ID),
		"removed":       r.admin.DeleteUser(t.Context(), "admin"),
		"demoted":       demoted,
	} {
		if problemType(err) != fleetapi.ProblemConflict {
			t.Errorf("the last admin, %s: %v", what, err)
		}
	}
	if _, err := r.admin.CreateToken(t.Context(), "second", fleetapi.TokenCreate{}); err != nil {
		t.Fatal(err)
	}
	if err := r.admin.DeleteUser(t.Context(), "admin"); err != nil {
		t.Errorf("another admin has a valid token: %v", err)
	}
}

func TestEvents_HaveTheNewState(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		for i := range 100 { // the stream may begin late
			_, err := r.admin.PutProject(ctx, "p", fleetapi.ProjectEdit{Quota: fleetapi.Quota{VMs: i + 1}})
			if err == nil {
				_, _ = r.admin.CreateVM(ctx, vmOf("vm", 1, topology.GiB), fleetapi.Change{})
				_, _ = r.admin.DeleteVM(ctx, "vm", fleetapi.Change{})
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			_, _ = r.admin.Cordon(ctx, "a")
			_, _ = r.admin.Uncordon(ctx, "a")
		}
	}()
	for e, err := range r.admin.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == fleetapi.EventHost && e.Host != nil && e.Host.Name == "a" {
			return
		}
	}
	t.Error("no event")
}

func TestRequests_OfTheWrongForm(t *testing.T) {
	r := newRig(t)
	made, err := r.admin.CreateToken(t.Context(), "admin", fleetapi.TokenCreate{})
	if err != nil {
		t.Fatal(err)
	}
	web := r.anonymous()
	for _, test := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/v1/vms", `{`, 400},
		{"POST", "/v1/vms", `null`, 422},
		{"POST", "/v1/vms", `{"spec":{"name":"a","vcpus":1,"memory":"1G"},"unknown":1}`, 422},
		{"POST", "/v1/vms", `{"project":"default","spec":{"name":"a","vcpus":0,"memory":"1G"}}`, 422},
		{"POST", "/v1/vms", `{"project":"none","spec":{"name":"a","vcpus":1,"memory":"1G"}}`, 404},
		{"POST", "/v1/vms",
			`{"project":"default","spec":{"name":"a","vcpus":1,"memory":"1G"},` +
				`"machine":{"disks":[{"path":"../x"}]}}`, 422},
		{"POST", "/v1/vms", `{"x":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
		{"DELETE", "/v1/hosts", ``, 405},
		{"GET", "/v1", ``, 404},
		{"GET", "/v1/vms?limit=100000", ``, 422},
		{"GET", "/v1/vms?state=happy", ``, 422},
		{"GET", "/v1/vms?limit=1&limit=x", ``, 422},
		{"GET", "/v1/vms?limit=1", ``, 200},
		{"GET", "/v1/vms?limit=", ``, 422},
		{"GET", "/v1/vms?state=", ``, 422},
		{"GET", "/v1/vms?project=&cursor=", ``, 200},
		{"POST", "/v1/vms?dry_run=", `{"spec":{"name":"a","vcpus":1,"memory":"1G"}}`, 422},
		{"POST", "/v1/joins", `{"minutes":null}`, 422},
		{"POST", "/v1/joins", `{"minutes":"null"}`, 422},
		{"POST", "/v1/joins", `{"minutes":1}`, 201},
		{"POST", "/v1/vms",
			`{"project":"default","labels":{"a":"null"},"spec":{"name":"a","vcpus":1,"memory":"1.5 GiB"}}`, 201},
		{"POST", "/v1/vms", `{"project":"default","spec":{"name":"b","vcpus":1,"memory":""}}`, 422},
		{"POST", "/v1/vms", `{"project":"default","spec":{"name":"b","vcpus":1,"memory":"1G","limits":{"max_nodes":null}}}`,
			422},
		{"GET", "/v1/hosts/none", ``, 404},
		{"PUT", "/v1/users/a%2Fb", `{"role":"viewer"}`, 422},
		{"PUT", "/v1/users/x", `{"role":"root"}`, 422},
		{"PUT", "/v1/projects/default", `{"quota":{"memory_bytes":9223372036854775808}}`, 422},
		{"PUT", "/v1/projects/default", `{"quota":{"memory_bytes":1152921504606846976}}`, 200},
		{"PUT", "/v1/projects/default", `{"quota":{"memory_bytes":"16777216T"}}`, 422},
	} {
		if status := ask(t, web, r.url, test.method, test.path, made.Secret, test.body, nil); status != test.want {
			t.Errorf("%s %s %.60s: status %d, want %d", test.method, test.path, test.body, status, test.want)
		}
	}
}

// A header that limits a change, or makes it once, counts as it was sent: an empty one is not one that is absent.
func TestRequests_WithEmptyOrRepeatedHeaders(t *testing.T) {
	r := newRig(t)
	made, err := r.admin.CreateToken(t.Context(), "admin", fleetapi.TokenCreate{})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, method, path, body string
		values                   []string
		want                     int
	}{
		{"If-Match", "PUT", "/v1/projects/new", `{}`, []string{""}, 422},
		{"If-Match", "PUT", "/v1/projects/new", `{}`, []string{"*", `"1"`}, 422},
		{"If-Match", "PUT", "/v1/projects/new", `{}`, []string{`"1"`}, 412},
		{"Idempotency-Key", "POST", "/v1/vms", `{"spec":{"name":"a","vcpus":1,"memory":"1G"}}`, []string{""}, 422},
		{"Idempotency-Key", "POST", "/v1/vms", `{"spec":{"name":"a","vcpus":1,"memory":"1G"}}`,
			[]string{"a", "b"}, 422},
		{"Idempotency-Key", "POST", "/v1/vms", `{"spec":{"name":"a","vcpus":1,"memory":"1G"}}`, []string{"a"}, 201},
	} {
		q, err := http.NewRequestWithContext(t.Context(), test.method, r.url+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header = http.Header{"Authorization": {"Bearer " + made.Secret}, "Content-Type": {"application/json"},
			test.name: test.values}
		answer, err := r.anonymous().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != test.want {
			t.Errorf("%s: %q: status %d, want %d", test.name, test.values, answer.StatusCode, test.want)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
