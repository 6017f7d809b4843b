package fleetofone_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/inventory"
)

// What cannot be done is refused with a problem that says why; nothing changes.
func TestInput_IsRefused(t *testing.T) {
	s := serve(t, nil)
	s.create("web1")
	const spec = `"spec": {"name": "x", "vcpus": 1, "memory": "64M"}`
	for _, c := range []struct {
		what, method, path, body string
		headers                  []string
		status                   int
		says                     string
	}{
		{"no JSON", "POST", "/v1/vms", "{", nil, http.StatusBadRequest, ""},
		{"null", "POST", "/v1/vms", "null", nil, http.StatusUnprocessableEntity, "null"},
		{"no spec", "POST", "/v1/vms", "{}", nil, http.StatusUnprocessableEntity, "spec"},
		{"another field", "POST", "/v1/vms", `{` + spec + `, "color": 1}`, nil, http.StatusUnprocessableEntity, "color"},
		{"no name", "POST", "/v1/vms", `{"spec": {"vcpus": 1, "memory": "64M"}}`, nil, http.StatusUnprocessableEntity, "name"},
		{"half a MiB", "POST", "/v1/vms", `{"spec": {"name": "x", "vcpus": 1, "memory": "512K"}}`, nil,
			http.StatusUnprocessableEntity, "MiB"},
		{"too many vCPUs", "POST", "/v1/vms", `{"spec": {"name": "x", "vcpus": 17, "memory": "64M"}}`, nil,
			http.StatusConflict, "no-host"},
		{"too much memory", "POST", "/v1/vms?dry_run=true", `{"spec": {"name": "x", "vcpus": 1, "memory": "1T"}}`, nil,
			http.StatusConflict, "no-host"},
		{"a project", "POST", "/v1/vms", `{"project": "shop", ` + spec + `}`, nil, http.StatusUnprocessableEntity, "project shop"},
		{"labels", "POST", "/v1/vms", `{"labels": {"a": "b"}, ` + spec + `}`, nil, http.StatusUnprocessableEntity, "labels"},
		{"a group", "POST", "/v1/vms", `{"affinity": {"group": "g"}, ` + spec + `}`, nil, http.StatusUnprocessableEntity,
			"affinity"},
		{"a stopped VM", "POST", "/v1/vms", `{"run": "stopped", ` + spec + `}`, nil, http.StatusUnprocessableEntity, "stop it"},
		{"a relative disk", "POST", "/v1/vms", `{"machine": {"disks": [{"path": "x"}]}, ` + spec + `}`, nil,
			http.StatusUnprocessableEntity, "path"},
		{"a kernel elsewhere", "POST", "/v1/vms", `{"machine": {"kernel": "/etc/passwd"}, ` + spec + `}`, nil,
			http.StatusUnprocessableEntity, "/etc/passwd"},
		{"too large", "POST", "/v1/vms", `{"machine": {"cloud_init": "` + strings.Repeat("x", 1<<20) + `"}, ` + spec + `}`, nil,
			http.StatusRequestEntityTooLarge, ""},
		{"no form", "POST", "/v1/vms", "a=b", []string{"Content-Type", "application/x-www-form-urlencoded"},
			http.StatusUnsupportedMediaType, ""},
		{"two keys", "POST", "/v1/vms", `{` + spec + `}`, []string{"Idempotency-Key", ""}, http.StatusUnprocessableEntity,
			"Idempotency-Key"},
		{"an empty dry run", "POST", "/v1/vms?dry_run=", `{` + spec + `}`, nil, http.StatusUnprocessableEntity, "dry_run"},
		{"another query", "GET", "/v1/vms?colour=red", "", nil, http.StatusUnprocessableEntity, "colour"},
		{"another state", "GET", "/v1/vms?state=red", "", nil, http.StatusUnprocessableEntity, "state"},
		{"no page", "GET", "/v1/vms?limit=0", "", nil, http.StatusUnprocessableEntity, "limit"},
		{"no VM", "POST", "/v1/vms/web2/start", "", nil, http.StatusNotFound, "web1"},
		{"a revision in words", "POST", "/v1/vms/web1/stop", "", []string{"If-Match", "now"}, http.StatusUnprocessableEntity,
			"If-Match"},
		{"another revision", "POST", "/v1/vms/web1/stop", "", []string{"If-Match", `"7"`}, http.StatusPreconditionFailed,
			"revision 7"},
		{"another host", "POST", "/v1/adopt", `{"host": "other", "name": "web1"}`, nil, http.StatusNotFound, "host fake"},
		{"adopt what is ours", "POST", "/v1/adopt", `{"host": "fake", "name": "web1"}`, nil, http.StatusConflict, "already"},
		{"adopt nothing", "POST", "/v1/adopt", `{"host": "fake", "name": "none"}`, nil, http.StatusNotFound, "none"},
		{"adopt for a project", "POST", "/v1/adopt", `{"host": "fake", "name": "web1", "project": "p"}`, nil,
			http.StatusUnprocessableEntity, "project p"},
		{"no path", "GET", "/v1/nothing", "", nil, http.StatusNotFound, "/v1/nothing"},
		{"another method", "PUT", "/v1/vms", "", nil, http.StatusMethodNotAllowed, "GET"},
	} {
		status, body, header := s.ask(c.method, c.path, c.body, c.headers...)
		if status != c.status || !strings.Contains(body, c.says) ||
			header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: status %d, not %d with %q: %s", c.what, status, c.status, c.says, body)
		}
	}
	if vm, err := s.client.VM(t.Context(), "web1"); err != nil || vm.State != "running" {
		t.Errorf("%s: %v", text(vm), err)
	}
	if _, body, _ := s.ask("POST", "/v1/vms/web1/stop", ""); !strings.Contains(body, `"stopped"`) {
		t.Error(body)
	}
	if status, body, _ := s.ask("POST", "/v1/vms/web1/bind", ""); status != http.StatusConflict ||
		!strings.Contains(body, "start it first") {
		t.Errorf("binding a stopped VM: %d %s", status, body)
	}
	s.CheckSettled(t)
}

// A type of machine that the host does not make is refused before anything is made.
func TestCreate_OfAnotherMachineType(t *testing.T) {
	s := serve(t, func(o *fleetofone.Options) { o.Types = []string{inventory.MachineXen} })
	for _, query := range []string{"", "?dry_run=true"} {
		status, body, _ := s.ask("POST", "/v1/vms"+query, `{"spec": {"name": "x", "vcpus": 1, "memory": "64M"}}`)
		if status != http.StatusUnprocessableEntity || !strings.Contains(body, "machine.type is kvm") {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	s.CheckSettled(t)
}
