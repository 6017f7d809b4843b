package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/topology"
)

// extend gives a stored record members of a newer version.
func (s *together) extend(t *testing.T, key string, change func(record map[string]any)) {
	t.Helper()
	s.edit(t, key, change)
	s.waitForRecord(t, key)
}

func (s *together) edit(t *testing.T, key string, change func(record map[string]any)) {
	t.Helper()
	value := s.stored(t, key)
	change(value)
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: key, Value: text}}}); err != nil {
		t.Fatal(err)
	}
}

// waitForRecord waits until the server knows a record as it is stored.
func (s *together) waitForRecord(t *testing.T, key string) {
	t.Helper()
	r, err := s.store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() (known bool) {
		s.cache.read(func(st *state) { known = st.revisionOf(key) >= r.Revision })
		return known
	})
}

func (s *together) stored(t *testing.T, key string) (value map[string]any) {
	t.Helper()
	r, err := s.store.Get(t.Context(), key)
	if err == nil {
		err = json.Unmarshal(r.Value, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// at returns a member of a record, by its path.
func at(value any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		of, _ := value.(map[string]any)
		value = of[name]
	}
	return value
}

func TestChange_KeepsWhatANewerServerWrote(t *testing.T) {
	t.Parallel()
	s := newTogether(t)
	if _, err := s.CreateVM(t.Context(), s.call, vmOf("v", 1, topology.GiB)); err != nil {
		t.Fatal(err)
	}
	s.extend(t, store.VMs+"v", func(r map[string]any) {
		r["newer"] = map[string]any{"a": []any{1.0, "x"}}
		r["spec"].(map[string]any)["newer"] = "wish"
		r["placement"].(map[string]any)["newer"] = "of this placement"
	})
	s.extend(t, store.Hosts+"a", func(r map[string]any) { r["newer"] = 1.0 })
	s.extend(t, store.Projects+"default", func(r map[string]any) { r["newer"] = true })
	for what, change := range map[string]func() error{
		"stop":    func() error { _, err := s.StopVM(t.Context(), s.call, "v"); return err },
		"host":    func() error { _, err := s.EditHost(t.Context(), s.call, "a", preferred()); return err },
		"project": func() error { _, err := s.PutProject(t.Context(), s.call, "default", quotaOf(7)); return err },
	} {
		if err := change(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	vm := s.stored(t, store.VMs+"v")
	for path, want := range map[string]any{"run": "stopped", "newer.a": []any{1.0, "x"}, "spec.newer": "wish",
		"placement.newer": "of this placement"} {
		if diff := cmp.Diff(want, at(vm, path)); diff != "" {
			t.Errorf("the VM's %s (-want +got):\n%s", path, diff)
		}
	}
	if h := s.stored(t, store.Hosts+"a"); h["preference"] != -1.0 || h["newer"] != 1.0 {
		t.Errorf("the host is %v", h)
	}
	if p := s.stored(t, store.Projects+"default"); at(p, "quota.vms") != 7.0 || p["newer"] != true {
		t.Errorf("the project is %v", p)
	}
}

func preferred() fleetapi.HostEdit { first := -1.0; return fleetapi.HostEdit{Preference: &first} }

func quotaOf(vms int) fleetapi.ProjectEdit {
	return fleetapi.ProjectEdit{Quota: fleetapi.Quota{VMs: vms}}
}

func TestWithUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ next, old, known, want string }{
		"nothing unknown":      {`{"a":2}`, `{"a":1}`, `{"a":1}`, `{"a":2}`},
		"a member":             {`{"a":2}`, `{"a":1,"n":3}`, `{"a":1}`, `{"a":2,"n":3}`},
		"a member that is set": {`{"a":2,"n":4}`, `{"a":1,"n":3}`, `{"a":1}`, `{"a":2,"n":4}`},
		"a member removed":     {`{}`, `{"a":1,"n":3}`, `{"a":1}`, `{"n":3}`},
		"of an object":         {`{"o":{"a":2}}`, `{"o":{"a":1,"n":3}}`, `{"o":{"a":1}}`, `{"o":{"a":2,"n":3}}`},
		"of an object removed": {`{}`, `{"o":{"a":1,"n":3}}`, `{"o":{"a":1}}`, `{}`},
		"of elements": {`{"l":[{"a":2},{}]}`, `{"l":[{"a":1,"n":3},{"n":4}]}`, `{"l":[{"a":1},{}]}`,
			`{"l":[{"a":2,"n":3},{"n":4}]}`},
		"of another list": {`{"l":[{"a":2}]}`, `{"l":[{"a":1,"n":3},{}]}`, `{"l":[{"a":1},{}]}`, `{"l":[{"a":2}]}`},
		"a label removed": {`{"labels":{"x":"1"}}`, `{"labels":{"x":"1","y":"2"}}`, `{"labels":{"x":"1","y":"2"}}`,
			`{"labels":{"x":"1"}}`},
		"another placement": {`{"placement":{"a":2}}`, `{"placement":{"a":1,"n":3}}`, `{"placement":{"a":1}}`,
			`{"placement":{"a":2}}`},
		"the same migration": {`{"migration":{"began":"t","a":2}}`, `{"migration":{"began":"t","n":3}}`,
			`{"migration":{"began":"t"}}`, `{"migration":{"a":2,"began":"t","n":3}}`},
		"another migration": {`{"migration":{"began":"u"}}`, `{"migration":{"began":"t","n":3}}`,
			`{"migration":{"began":"t"}}`, `{"migration":{"began":"u"}}`},
		"large numbers": {`{"a":2}`, `{"n":12345678901234567890}`, `{}`, `{"a":2,"n":12345678901234567890}`},
	} {
		got, err := withUnknown([]byte(c.next), []byte(c.old), []byte(c.known))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, c.want)
		}
	}
}
