package fleetofone_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/topology"
)

type object = map[string]any

// documentOf returns an OpenAPI document as it is served.
func documentOf(t *testing.T, h http.Handler) object {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	var doc object
	if err := json.Unmarshal(answer.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// at follows keys into a document.
func at(v any, keys ...string) any {
	for _, key := range keys {
		m, _ := v.(object)
		v = m[key]
	}
	return v
}

// The daemon's document and the server's have the same operations, requests and answers. The daemon's adds the
// answer 501 to operations that need a fleet, and has no tokens.
func TestDocument_IsThatOfTheServer(t *testing.T) {
	s := serve(t, nil)
	server, err := rest.Handler(struct {
		rest.HostService
		rest.FleetService
	}{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want, got := documentOf(t, server), documentOf(t, s.service)
	for _, op := range fleetapi.Operations() {
		described, _ := at(got, "paths", op.Path, strings.ToLower(op.Method)).(object)
		answers, _ := described["responses"].(object)
		if _, has := answers["501"]; has != op.Fleet {
			t.Errorf("%s: status 501 is described: %v", op.ID, has)
		}
		delete(answers, "501")
		if _, has := described["security"]; has {
			t.Errorf("%s: the document asks for a token, and the socket needs none", op.ID)
		}
		served, _ := at(want, "paths", op.Path, strings.ToLower(op.Method)).(object)
		if _, has := served["security"]; has != (op.Role != "") {
			t.Errorf("%s: the server's document asks for a token: %v", op.ID, has)
		}
		delete(served, "security")
		delete(served, "description") // the role that it needs
	}
	if at(got, "components", "securitySchemes") != nil {
		t.Error("the document has tokens, and the socket needs none")
	}
	if components, ok := at(want, "components").(object); ok {
		delete(components, "securitySchemes")
	}
	for _, part := range []string{"paths", "components"} {
		if !reflect.DeepEqual(want[part], got[part]) {
			t.Errorf("%s differ", part)
		}
	}
}

// Each operation is done, or answered with a problem that names what is needed.
func TestOperations_AreDoneOrNeedAFleet(t *testing.T) {
	s := serve(t, nil)
	doc := documentOf(t, s.service)
	for _, op := range fleetapi.Operations() {
		if op.ID == "watch-events" {
			continue // it does not end
		}
		s.reset(t)
		if op.ID == "resize-vm" { // of a VM that does not run
			if _, err := s.client.StopVM(t.Context(), "web1", fleetapi.Change{}); err != nil {
				t.Fatal(err)
			}
		}
		path := strings.NewReplacer("{host}", host, "{vm}", "web1", "{project}", "p", "{user}", "ann", "{token}", "t").
			Replace(op.Path)
		status, body, _ := s.ask(op.Method, path, bodies[op.ID])
		want := op.Status
		if want == 0 {
			want = http.StatusOK
		}
		if op.Fleet {
			want = http.StatusNotImplemented
			if !strings.Contains(body, string(fleetapi.ProblemNeedsFleet)) || !strings.Contains(body, "server") {
				t.Errorf("%s: %s", op.ID, body)
			}
		}
		if status != want {
			t.Errorf("%s: status %d, not %d: %s", op.ID, status, want, body)
		}
		answers, _ := at(doc, "paths", op.Path, strings.ToLower(op.Method), "responses", strconv.Itoa(status),
			"content").(object)
		for _, content := range answers {
			for _, fault := range (checker{doc}).check(at(content, "schema"), decoded(t, body), op.ID) {
				t.Error(fault)
			}
		}
	}
}

// bodies are requests, by operation.
var bodies = map[string]string{
	"create-vm": `{"spec": {"name": "web2", "vcpus": 2, "memory": "64M"}}`,
	"adopt-vm":  `{"host": "fake", "name": "other"}`,
	"resize-vm": `{"vcpus": 1}`,
	"edit-host": `{"rack": "r"}`, "create-join": `{}`,
	"put-project": `{}`, "put-user": `{"role": "viewer"}`, "create-token": `{}`,
}

// reset gives the host a VM of its own, web1, and one of another program, other.
func (s *socket) reset(t *testing.T) {
	t.Helper()
	for _, name := range []string{"web1", "web2", "other"} {
		if _, exists := s.Guest(name); exists {
			if err := s.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.create("web1")
	s.MustAdd(t, operatetest.Kinds[0].Guest("other", 32*mib, []topology.NodeID{1}, operatetest.CPUs("4-7")))
}

func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// Lists of a busy host have the form of the document as well.
func TestAnswers_HaveTheFormOfTheDocument(t *testing.T) {
	s := serve(t, nil)
	s.reset(t)
	doc := documentOf(t, s.service)
	busyStatus(s)
	for path, like := range map[string]string{
		"/v1/hosts": "", "/v1/hosts/fake": "/v1/hosts/{host}", "/v1/hosts/fake/nodes": "/v1/hosts/{host}/nodes",
		"/v1/vms": "", "/v1/vms/other": "/v1/vms/{vm}", "/v1/vms/web1/placement": "/v1/vms/{vm}/placement",
		"/v1/vms/none": "/v1/vms/{vm}", "/v1/plan": "", "/v1/moves": "", "/v1/history": "", "/v1/alarms": "",
	} {
		if like == "" {
			like = path
		}
		status, body, header := s.ask(http.MethodGet, path, "")
		schema := at(doc, "paths", like, "get", "responses", strconv.Itoa(status), "content", header.Get("Content-Type"),
			"schema")
		if schema == nil {
			t.Errorf("%s: the document has no status %d of type %s", path, status, header.Get("Content-Type"))
		}
		for _, fault := range (checker{doc}).check(schema, decoded(t, body), path) {
			t.Error(fault)
		}
	}
}

// checker compares values with schemas of a document: those keywords that the document uses.
type checker struct{ doc object }

func (c checker) check(schema, v any, where string) (faults []string) {
	s, _ := schema.(object)
	if ref, ok := s["$ref"].(string); ok {
		return c.check(at(c.doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...), v, where)
	}
	wrong := func(format string, args ...any) { faults = append(faults, where+": "+fmt.Sprintf(format, args...)) }
	if any, ok := s["anyOf"].([]any); ok && !slices.ContainsFunc(any, func(one interface{}) bool {
		return len(c.check(one, v, where)) == 0
	}) {
		wrong("%v is none of the alternatives", v)
	}
	if !typed(s["type"], v) {
		wrong("%v (%T) is not of type %v", v, v, s["type"])
		return faults
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		wrong("%v is none of %v", v, enum)
	}
	switch v := v.(type) {
	case string:
		if pattern, ok := s["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(v) {
			wrong("%q does not match %s", v, pattern)
		}
	case float64:
		if least, ok := s["minimum"].(float64); ok && v < least {
			wrong("%v is less than %v", v, least)
		}
		if most, ok := s["maximum"].(float64); ok && v > most {
			wrong("%v is more than %v", v, most)
		}
	case []any:
		for i := range v {
			faults = append(faults, c.check(s["items"], v[i], fmt.Sprintf("%s[%d]", where, i))...)
		}
	case object:
		faults = append(faults, c.object(s, v, where)...)
	}
	return faults
}

func (c checker) object(s, v object, where string) (faults []string) {
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, has := v[fmt.Sprint(name)]; !has {
			faults = append(faults, fmt.Sprintf("%s: %v is missing", where, name))
		}
	}
	for name, part := range v {
		schema := at(s["properties"], name)
		if schema == nil {
			if schema = s["additionalProperties"]; schema == false {
				faults = append(faults, where+": "+name+" is not described")
			}
		}
		faults = append(faults, c.check(schema, part, where+"."+name)...)
	}
	return faults
}

// typed reports whether a value is of one of a schema's types.
func typed(types, v any) bool {
	if list, ok := types.([]any); ok {
		return slices.ContainsFunc(list, func(one any) bool { return typed(one, v) })
	}
	switch types {
	case "object":
		_, ok := v.(object)
		return ok
	case "array":
		_, ok := v.([]any)
		return ok
	case "string":
		_, ok := v.(string)
		return ok
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "number":
		_, ok := v.(float64)
		return ok
	case "integer":
		n, ok := v.(float64)
		return ok && n == math.Trunc(n)
	case "null":
		return v == nil
	}
	return true
}
