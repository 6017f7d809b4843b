package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/plan"
)

func TestParse(t *testing.T) {
	text, err := json.Marshal(oneMove())
	if err != nil {
		t.Fatal(err)
	}
	got, err := plan.Parse(strings.NewReader(string(text) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(oneMove(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":        {"", "not a plan of moves"},
		"something else": {`{"version": 1}`, `unknown field "version"`},
		"more":           {string(text) + "{}", "more follows"},
		"no host":        {`{"moves": []}`, "names no host"},
		"no guest":       {`{"host": "h", "moves": [{"kind": "move"}]}`, "move 1: it names no VM"},
		"another's": {strings.Replace(string(text), `"guest":"db","nodes"`, `"guest":"web","nodes"`, 1),
			`VM "db" has the placement of VM "web"`},
		"the same, twice": {`{"host": "h", "moves": [{"guests": [{"guest": "a", "placement": {"guest": "a"}}, ` +
			`{"guest": "a", "placement": {"guest": "a"}}]}]}`, "VM a is in it twice"},
		"an unknown kind": {strings.Replace(string(text), `"kind":"move"`, `"kind":"teleport"`, 1),
			`move 1: kind "teleport": allowed are repin, move-guest-memory, move, swap, split, consolidate, spread, batch`},
		"no kind": {strings.Replace(string(text), `"kind":"move",`, ``, 1),
			`move 1: kind "": allowed are repin`},
		"no name":          {`{"host": "h", "moves": [{"guests": [{}]}]}`, `VM ""`},
		"truncated":        {string(text[:len(text)/2]), "not a plan of moves"},
		"not what it says": {`{"host": 7}`, "not a plan of moves"},
	} {
		if _, err := plan.Parse(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// For any input: a plan that passes can be written, and reads back the same.
func FuzzParse(f *testing.F) {
	text, err := json.Marshal(oneMove())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"host":"h","moves":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := plan.Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := plan.Parse(strings.NewReader(string(again)))
		if err != nil {
			t.Fatalf("%v in %s", err, again)
		}
		third, err := json.Marshal(back)
		if err != nil || string(third) != string(again) {
			t.Errorf("%s became %s: %v", again, third, err)
		}
		_ = r.Text()
	})
}
