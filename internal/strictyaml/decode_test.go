package strictyaml_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/strictyaml"
)

// garden has a field of every kind that a file may hold.
type garden struct {
	Name   string           `json:"name,omitempty"`
	Beds   []bed            `json:"beds,omitempty"`
	Water  mode             `json:"water,omitempty"`
	Depth  *length          `json:"depth,omitempty"`
	Guard  *bool            `json:"guard,omitempty"`
	Open   bool             `json:"open,omitempty"`
	Share  float64          `json:"share,omitempty"`
	Matrix [][]float64      `json:"matrix,omitempty"`
	Owners map[string]mode  `json:"owners,omitempty"`
	Trees  map[season]*soil `json:"trees,omitempty"`
	Soil   soil             `json:"soil,omitzero"`
}

type bed struct {
	Rows int  `json:"rows"`
	Soil soil `json:"soil,omitzero"`
}

type soil struct {
	Acid      float64 `json:"acid"`
	WaterHold int     `json:"water_hold"`
}

type mode string

func (mode) Words() []string { return []string{"off", "drip", "flood"} }

type season string

func (season) Words() []string { return []string{"spring", "autumn"} }

// length reads "3cm".
type length int

func (l *length) UnmarshalText(text []byte) error {
	if _, err := fmt.Sscanf(string(text), "%dcm", (*int)(l)); err != nil {
		return errors.New("write it like 3cm")
	}
	return nil
}

var format = strictyaml.Format{Kind: "garden", MaxBytes: 1 << 20}

func decode(text string) (garden, error) {
	var g garden
	_, err := strictyaml.Decode(strings.NewReader(text), format, &g, nil)
	return g, err
}

func ptr[T any](v T) *T { return &v }

func TestDecode_Values(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       garden
	}{
		{"an empty file", "", garden{}},
		{"only comments", "# mine\n\n", garden{}},
		{"a mark before the document", "# mine\n---\nname: a\n", garden{Name: "a"}},
		{"a byte order mark", "\ufeffname: a\n", garden{Name: "a"}},
		{"a version", "%YAML 1.1\n---\nname: a\n", garden{Name: "a"}},
		{"carriage returns", "name: a\r\nopen: true\r\n", garden{Name: "a", Open: true}},
		{"fields without a value", "name:\nbeds: ~\nsoil: null\n", garden{}},
		{"a text that YAML 1.1 takes for a truth", "name: no", garden{Name: "no"}},
		{"a text that looks like a date", "name: 2001-01-01", garden{Name: "2001-01-01"}},
		{"a text of several lines", "name: |\n  a\n  b\n", garden{Name: "a\nb\n"}},
		{"a quoted number", "name: '17'", garden{Name: "17"}},
		{"bare off", "water: off", garden{Water: "off"}},
		{"bare no", "water: No", garden{Water: "off"}},
		{"false", "water: false", garden{Water: "off"}},
		{"quoted off", "water: 'off'", garden{Water: "off"}},
		{"truths", "open: yes\nguard: off", garden{Open: true, Guard: ptr(false)}},
		{"a type's own form", "depth: 3cm", garden{Depth: ptr(length(3))}},
		{"whole numbers", "beds: [{rows: 3}, {rows: 8.0}, {rows: 1e3}, {rows: 0x10}, {rows: -2}]",
			garden{Beds: []bed{{Rows: 3}, {Rows: 8}, {Rows: 1000}, {Rows: 16}, {Rows: -2}}}},
		{"numbers", "share: 5\nmatrix: [[.5, 1e3], []]", garden{Share: 5, Matrix: [][]float64{{.5, 1000}, {}}}},
		{"maps", "owners: {eve: drip, \"a.b\": no}\ntrees: {autumn: {acid: 1}, spring: ~}",
			garden{Owners: map[string]mode{"eve": "drip", "a.b": "off"},
				Trees: map[season]*soil{"autumn": {Acid: 1}, "spring": nil}}},
		{"an owner without a value", "owners: {eve: }", garden{Owners: map[string]mode{"eve": ""}}},
		{"JSON", "{\n\t\"name\": \"\\u00e4\\/b\",\n\t\"beds\": [{\"rows\": 2}],\n\t\"open\": true, \"guard\": " +
			"null\n}\n",
			garden{Name: "ä/b", Beds: []bed{{Rows: 2}}, Open: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecode_Faults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a slip of the pen", "name: a\nsaol:\n  acid: 1", "garden:2:1: saol: no such field; did you mean soil?"},
		{"another spelling", "soil: {waterHold: 1}",
			"garden:1:8: soil.waterHold: no such field; did you mean soil.water_hold?"},
		{"capitals", "NAME: a", "garden:1:1: NAME: no such field; did you mean name?"},
		{"the right name in the wrong place", "acid: 1", "garden:1:1: acid: no such field; did you mean soil.acid?"},
		{"in a list", "beds:\n  - rows: 1\n    row: 2",
			"garden:3:5: beds[0].row: no such field; did you mean beds[0].rows?"},
		{"nothing near", "soil:\n  colour: red",
			"garden:2:3: soil.colour: no such field; allowed: acid, water_hold"},
		{"a key of a map that has words", "trees: {sprung: {}}",
			"garden:1:9: trees.sprung: no such field; did you mean trees.spring?"},
		{"a name that is no name", "\"a\\nb.c\": 1", `garden:1:1: "a\nb.c": no such field; allowed: name, beds, `},
		{"a merge of other fields", "<<: {name: a}", `garden:1:1: "<<": no such field; allowed: name, beds, `},
		{"a list for a name", "[a]: 1", "garden:1:1: the document has a list for the name of a field; allowed: text"},
		{"a field twice", "name: a\nopen: true\nname: b", "garden:3:1: name is given twice; line 1 has it already"},
		{"a field twice in JSON", `{"soil": {"acid": 1, "acid": 2}}`,
			"garden:1:22: soil.acid is given twice; line 1 has it already"},
		{"text for a number", "beds:\n- rows: many", `garden:2:9: beds[0].rows is "many"; allowed: a whole number`},
		{"half a row", "beds: [{rows: 1.5}]", "garden:1:15: beds[0].rows is 1.5; allowed: a whole number"},
		{"a number that is too large", "beds: [{rows: 99999999999999999999}]",
			"garden:1:15: beds[0].rows is 99999999999999999999; allowed: a whole number"},
		{"no number", "share: .nan", "garden:1:8: share is .nan; allowed: a number"},
		{"a number for text", "name: 17", "garden:1:7: name is 17; allowed: text; put it in quotes"},
		{"a truth for text", "name: true", "garden:1:7: name is true; allowed: text; put it in quotes"},
		{"text for a truth", "open: 'yes'", `garden:1:7: open is "yes"; allowed: true or false`},
		{"an unknown word", "water: spray", `garden:1:8: water is "spray"; allowed: off, drip, flood`},
		{"yes for a word", "water: yes", `garden:1:8: water is "yes"; allowed: off, drip, flood`},
		{"an unknown word in a map", "owners:\n  \"a.b\": 7",
			`garden:2:10: owners."a.b" is 7; allowed: off, drip, flood`},
		{"a type's own error", "depth: deep", `garden:1:8: depth is "deep": write it like 3cm`},
		{"a list for a value", "depth: [1]", "garden:1:8: depth is a list; allowed: one value"},
		{"a value for a list", "beds: 5", "garden:1:7: beds is 5; allowed: a list"},
		{"a value for fields", "soil: 5", "garden:1:7: soil is 5; allowed: the fields acid, water_hold"},
		{"a list for a map", "owners: [eve]", "garden:1:9: owners is a list; allowed: a group of fields"},
		{"an empty entry", "beds: [~]", "garden:1:8: beds[0] is empty; allowed: a value"},
		{"a list for a document", "[1, 2]", "garden:1:1: the document is a list; allowed: the fields name, beds, "},
		{"an alias", "soil: &s {acid: 1}\nbeds: [{soil: *s}]",
			`garden:2:15: beds[0].soil is the alias "s"; allowed: the value itself`},
		{"two documents", "name: a\n---\nname: b", "garden:2:1: a second YAML document ('---'); allowed is one"},
		{"an empty document and another one", "---\n---\nname: b", "garden:2:1: a second YAML document"},
		{"broken YAML", "name: a\nsoil: [", "garden:3:1: neither YAML nor JSON: "},
		{"a broken second document", "name: a\n---\n[", "garden:4:1: neither YAML nor JSON: "},
		{"an unknown anchor", "name: *a", "garden:1:7: neither YAML nor JSON: "},
		{"large", strings.Repeat("#", 1<<20+1), "garden: larger than 1 MiB; is this the right file?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decode(c.text)
			if err == nil {
				t.Fatal("no error")
			}
			if got := err.Error(); !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestDecode_ReportsAllFaultsInOrder(t *testing.T) {
	_, err := decode("saol: 1\nname: 17\nbeds:\n- {rows: x}\n- {rows: y, soil: {acid: z}}\nwater: on\n")
	var e *strictyaml.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want a *strictyaml.Error", err)
	}
	want := `garden /g.yaml:1:1: saol: no such field; did you mean soil?
garden /g.yaml:2:7: name is 17; allowed: text; put it in quotes
garden /g.yaml:4:10: beds[0].rows is "x"; allowed: a whole number
garden /g.yaml:5:10: beds[1].rows is "y"; allowed: a whole number
garden /g.yaml:5:26: beds[1].soil.acid is "z"; allowed: a number
garden /g.yaml:6:8: water is "on"; allowed: off, drip, flood`
	if diff := cmp.Diff(want, e.In("/g.yaml").Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e.File != "" {
		t.Error("In changes the error that it is called on")
	}
}

func TestDecode_ReportsTenFaultsAtMost(t *testing.T) {
	var text strings.Builder
	for i := range 25 {
		fmt.Fprintf(&text, "k%d: 1\n", i)
	}
	_, err := decode(text.String())
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 11 || lines[10] != "garden: 15 more errors" {
		t.Errorf("%d lines, the last one %q; want 11, the last one with 15 more "+
			"errors", len(lines), lines[len(lines)-1])
	}
}

// Hostile files cost little time and get a short answer.
func TestDecode_HostileFiles(t *testing.T) {
	many := func(line string) string {
		var b strings.Builder
		for i := 0; b.Len() < 1<<20-100; i++ {
			fmt.Fprintf(&b, line, i)
		}
		return b.String()
	}
	bomb := "name: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1,
			c-1, c-1)
	}
	for name, text := range map[string]string{
		"unknown fields":       many("k%d: 1\n"),
		"wrong beds":           "beds:\n" + many("- {rows: x%d}\n"),
		"one field many times": many("name: a%d\n"),
		"one long name":        strings.Repeat("n", 1<<20-10) + ": 1",
		"one long value":       "water: " + strings.Repeat("n", 1<<20-10),
		"deep":                 strings.Repeat("[", 1<<20-10),
		"aliases of aliases":   bomb,
		"an alias of itself":   "beds: &a [*a]",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := decode(text)
			if err == nil || len(err.Error()) > 8<<10 {
				t.Errorf("not a short error: %.200v", err)
			}
			// generous: half a second is usual, quadratic work takes hours
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestDecode_PassesReadErrorsOn(t *testing.T) {
	broken := errors.New("broken disk")
	var g garden
	_, err := strictyaml.Decode(iotest.ErrReader(broken), format, &g, nil)
	var e *strictyaml.Error
	if !errors.Is(err, broken) || errors.As(err, &e) {
		t.Errorf("error %v, want %v and no fault of the file", err, broken)
	}
}

// A check sees the decoded values; what it finds is reported with what decoding found.
func TestDecode_Check(t *testing.T) {
	wrong := func(fields ...string) func() error {
		return func() error {
			var errs []error
			for _, f := range fields {
				errs = append(errs, &strictyaml.FieldError{Field: f, Value: "5", Allowed: "less"})
			}
			return fmt.Errorf("garden: %w", errors.Join(errs...))
		}
	}
	for _, c := range []struct {
		name, text string
		check      func() error
		want       string
	}{
		{"all fields right", "share: 5", func() error { return nil }, ""},
		{"a field of the document", "open: true\nshare: 5", wrong("share"), "garden:2:8: share is 5; allowed: less"},
		{"one below", "beds:\n- rows: 1\n- soil: {acid: 5}", wrong("beds[1].soil.acid"),
			"garden:3:16: beds[1].soil.acid is 5; allowed: less"},
		{"a name in quotes", "owners:\n  a.b: drip", wrong(`owners."a.b"`),
			`garden:2:8: owners."a.b" is 5; allowed: less`},
		{"a field without a value", "owners:\n  eve:", wrong("owners.eve"), "garden:2:3: owners.eve is 5; allowed: " +
			"less"},
		{"a field that is not there", "open: true\nbeds: [{rows: 1}]", wrong("share", "beds[1].rows", "beds[0].soil"),
			"garden:2:7: beds[1].rows is 5; allowed: less\ngarden:2:8: beds[0].soil is 5; allowed: less\n" +
				"garden: share is 5; allowed: less"},
		{"in an empty file", "", wrong("share"), "garden: share is 5; allowed: less"},
		{"in the order of the file", "soil: {acid: 5}\nsaol: 1\nopen: 5", wrong("soil.acid"),
			"garden:1:14: soil.acid is 5; allowed: less\ngarden:2:1: saol: no such field; did you mean soil?\n" +
				"garden:3:7: open is 5; allowed: true or false"},
		{"a missing field and an unknown one", "shore: 5", wrong("share"),
			"garden:1:1: shore: no such field; did you mean share?"},
		{"neighbours of an unreadable field", "share: 5\nmatrix: [[x]]\nsoil: {acid: 5, water_hold: x}",
			wrong("share", "soil.acid"), "garden:2:11: matrix[0][0] is \"x\"; allowed: a number\n" +
				"garden:3:29: soil.water_hold is \"x\"; allowed: a whole number"},
		{"an error without a field", "share: 5", func() error { return errors.New("too dry") }, "garden: too dry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var g garden
			_, err := strictyaml.Decode(strings.NewReader(c.text), format, &g, c.check)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDocument_Locate(t *testing.T) {
	var g garden
	doc, err := strictyaml.Decode(strings.NewReader("open: true\nshare: 5"), format, &g, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Locate(nil); err != nil {
		t.Errorf("error %v out of none", err)
	}
	err = doc.Locate(&strictyaml.FieldError{Field: "share", Value: "5", Allowed: "less"})
	if want := "garden:2:8: share is 5; allowed: less"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// What encoding/json reads of a JSON document with known fields, Decode reads alike.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"name: a\nbeds: [{rows: 1}]",
		`{"name": "a", "beds": [{"rows": 2, "soil": {"acid": 1.5}}]}`,
		"a: &a [*a]", "? {a: b}\n: c", "beds: .inf", "name: !!binary aGk=", "owners: {a.b: off}\nwater: no", "\xff\xfe",
		"- - -", "name: |\n a", "%TAG ! tag:x,2000:\n---\nname: !a b", "depth: 3cm\nopen: yes"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := decode(text)
		if err != nil {
			var e *strictyaml.Error
			if !errors.As(err, &e) || len(e.Faults) == 0 || len(e.Error()) > 16<<10 {
				t.Fatalf("not a short list of faults: %T %.300v", err, err)
			}
			return
		}
		var viaJSON struct {
			Name   string      `json:"name"`
			Share  float64     `json:"share"`
			Open   bool        `json:"open"`
			Matrix [][]float64 `json:"matrix"`
			Beds   []bed       `json:"beds"`
		}
		if json.Unmarshal([]byte(text), &viaJSON) != nil {
			return
		}
		want := g
		want.Name, want.Share, want.Open = viaJSON.Name, viaJSON.Share, viaJSON.Open
		want.Matrix, want.Beds = viaJSON.Matrix, viaJSON.Beds
		if diff := cmp.Diff(want, g); diff != "" {
			t.Fatalf("encoding/json and Decode differ (-json +decode):\n%s", diff)
		}
	})
}
