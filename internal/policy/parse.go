package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxBytes bounds a policy file.
const maxBytes = 1 << 20

// Parse reads a policy in YAML or JSON. Unknown fields are refused, and so are
// a second document and more than 1 MiB: a policy is not obeyed in part.
func Parse(r io.Reader) (Policy, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	if len(data) > maxBytes {
		return Policy{}, errors.New("not a policy: larger than 1 MiB; is this the right file?")
	}
	if manyDocuments(data) {
		return Policy{}, errors.New("not a policy: more than one YAML document ('---'); allowed is one")
	}
	var p Policy
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		var tree map[string]any
		if yaml.Unmarshal(data, &tree) == nil {
			err = errors.Join(fault("", tree, func(one any) any { return one }), err)
		}
		return Policy{}, fmt.Errorf("not a policy: %w", firstOf(err))
	}
	var tree map[string]any
	if err := yaml.Unmarshal(data, &tree, exactNumbers); err != nil {
		return Policy{}, fmt.Errorf("not a policy: %w", err)
	}
	if err := unitsGiven("", tree, reflect.TypeFor[Policy]()); err != nil {
		return Policy{}, fmt.Errorf("not a policy: %w", err)
	}
	return p, p.Validate()
}

// exactNumbers leaves numbers as they are written.
func exactNumbers(d *json.Decoder) *json.Decoder {
	d.UseNumber()
	return d
}

// unitsGiven returns an error for a size without a unit among the fields of a struct.
func unitsGiven(path string, fields map[string]any, t reflect.Type) error {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		value, given := fields[name]
		if !given || value == nil {
			continue
		}
		of, at := t.Field(i).Type, strings.TrimPrefix(path+"."+name, ".")
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of == reflect.TypeFor[topology.Bytes]() {
			if _, err := topology.ParseSize(fmt.Sprint(value)); err != nil {
				return fmt.Errorf("%s is %v: %w", at, value, err)
			}
		} else if inner, ok := value.(map[string]any); ok && of.Kind() == reflect.Struct {
			if err := unitsGiven(at, inner, of); err != nil {
				return err
			}
		}
	}
	return nil
}

// firstOf is the first of joined errors: the one that says most.
func firstOf(err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()[0]
	}
	return err
}

// manyDocuments reports whether a mark of a document follows on another one or on content.
func manyDocuments(data []byte) bool {
	begun := false
	for line := range bytes.Lines(data) {
		mark := bytes.HasPrefix(line, []byte("---"))
		if mark && begun {
			return true
		}
		line = bytes.TrimSpace(line)
		begun = begun || len(line) > 0 && line[0] != '#' && line[0] != '%'
	}
	return false
}

// fault finds the first field that alone cannot be read, and says where it is,
// what it holds and why that is wrong: of types that decode themselves,
// encoding/json does not tell where they stand. Whole puts a field into a
// policy that has nothing else; nil: each field can be read.
func fault(path string, fields map[string]any, whole func(any) any) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, at := fields[name], strings.TrimPrefix(path+"."+name, ".")
		alone := func(v any) any { return whole(map[string]any{name: v}) }
		text, err := json.Marshal(alone(value))
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(new(Policy))
		if err == nil {
			continue
		}
		if err.Error() == fmt.Sprintf("json: unknown field %q", name) {
			return fmt.Errorf("%s: there is no such field", at)
		}
		inner, _ := value.(map[string]any)
		if deeper := fault(at, inner, alone); deeper != nil {
			return deeper
		}
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			held, _ := json.Marshal(value) // it was marshalled before
			err = fmt.Errorf("%.60s is not %s", held, kindText(wrong.Type.Kind()))
		}
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

// kindText says what a field is to hold.
func kindText(k reflect.Kind) string {
	switch k {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a group of fields"
	default:
		return "text"
	}
}

// word reads one of a field's words. YAML takes a bare off for false, which as
// the value of a map comes as text; where off is a word it means that.
func word[T ~string](data []byte, allowed ...T) (T, error) {
	var text string
	if string(bytes.Trim(data, `"`)) == "false" {
		return "off", nil
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return "", fmt.Errorf("%s: allowed are %s", data, listOf(allowed))
	}
	return T(text), nil
}

func listOf[T ~string](words []T) string {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	return strings.Join(all, ", ")
}
