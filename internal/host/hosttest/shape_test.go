package hosttest

import (
	"strings"
	"testing"
)

// Keys and types are compared; what one document leaves empty is not. Differences that the hypervisors explain count no
// more.
func TestShapeDifferences(t *testing.T) {
	of := func(text string) Shape {
		s, err := ShapeOf([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, c := range map[string]struct{ a, b, differ, plane string }{
		"equal":        {a: `{"x":[{"y":1}],"0":2}`, b: `{"x":[{"y":5},{"y":2}],"7":3}`},
		"a key":        {a: `{"x":1}`, b: `{"x":1,"y":2}`, differ: ".y", plane: ".y"},
		"a type":       {a: `{"x":[1]}`, b: `{"x":["a"]}`, differ: ".x[]", plane: ".x[]"},
		"null":         {a: `{"x":null}`, b: `{"x":{"y":1}}`},
		"an empty one": {a: `{"x":[],"z":{}}`, b: `{"x":[{"y":1}],"z":{"3":1}}`},
		"known":        {a: `{"x":{"cpu_pool":"a"}}`, b: `{"x":{}}`, differ: ".x.cpu_pool"},
		"alike":        {a: `{"x":{"cpu_pool_a":"a"}}`, b: `{"x":{}}`, differ: ".x.cpu_pool_a", plane: ".x.cpu_pool_a"},
		"elsewhere": {a: `{"x":{"kernel":{"y":1}}}`, b: `{"x":{"kernel":{}}}`, differ: ".x.kernel.y",
			plane: ".x.kernel.y"},
	} {
		for _, got := range [][2]string{{strings.Join(ShapeDifferences(of(c.a), of(c.b)), ";"), c.differ},
			{strings.Join(PlaneDifferences(of(c.a), of(c.b)), ";"), c.plane}} {
			path, _, _ := strings.Cut(got[0], ":")
			if path != got[1] {
				t.Errorf("%s: differences %q, want in %q", name, got[0], got[1])
			}
		}
	}
	if _, err := ShapeOf([]byte("{")); err == nil {
		t.Error("half a document has a shape")
	}
}
