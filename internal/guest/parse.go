package guest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// maxSpec bounds what ParseSpec reads, maxErrors what it and Normalize report
// of one struct or list: a foreign file may be wrong a hundred thousand times.
const (
	maxSpec   = 1 << 20
	maxErrors = 20
)

// ParseSpec reads a spec in YAML or JSON (docs/spec.md). A field that a spec
// does not have is an error that names it and the nearest one that exists; so
// is a field given twice, a second document, and more than 1 MiB. All wrong
// fields are reported, not only the first. Values are not checked against each
// other and defaults not filled in: see Normalize.
func ParseSpec(r io.Reader) (Spec, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSpec+1))
	if err != nil {
		return Spec{}, fmt.Errorf("reading the spec: %w", err)
	}
	if len(data) > maxSpec {
		return Spec{}, errors.New("spec: larger than 1 MiB; is this the right file?")
	}
	if manyDocuments(data) {
		return Spec{}, errors.New("spec: more than one YAML document ('---'); allowed is one guest per file")
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return Spec{}, fmt.Errorf("spec: neither YAML nor JSON: %w", err)
	}
	var tree any
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber() // 64-bit sizes stay exact
	if err := numbers.Decode(&tree); err != nil {
		return Spec{}, fmt.Errorf("spec: neither YAML nor JSON: %w", err)
	}
	if tree == nil {
		return Spec{}, errors.New(
			"spec: is empty; at least vcpus and memory are needed, for example\nvcpus: 8\nmemory: 16G")
	}
	var s Spec
	if err := errors.Join(decode("", tree, reflect.ValueOf(&s).Elem())...); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// documentMark begins a YAML document; it cannot occur at the start of a line inside one.
var documentMark = regexp.MustCompile(`(?m)^---(\s|$)`)

// manyDocuments reports whether there is a document before the last mark.
func manyDocuments(data []byte) bool {
	marks := documentMark.FindAllIndex(data, -1)
	if len(marks) != 1 {
		return len(marks) > 1
	}
	for line := range bytes.Lines(data[:marks[0][0]]) {
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// decode fills v from a tree of JSON values and says of each field at fault
// where it is. encoding/json alone gives no path for types that decode
// themselves, stops at the first error and takes "VCPUS" for "vcpus".
func decode(path string, tree any, v reflect.Value) []error {
	if tree == nil { // "devices:" with nothing behind it is the default
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return decode(path, tree, v.Elem())
	}
	if !decodesItself(v.Type()) {
		switch v.Kind() {
		case reflect.Struct:
			return decodeStruct(path, tree, v)
		case reflect.Slice:
			return decodeSlice(path, tree, v)
		default: // a single value
		}
	}
	// YAML 1.1 reads a bare off as false.
	if off, ok := tree.(bool); ok && !off && v.Type() == reflect.TypeFor[TopologyMode]() {
		tree = string(TopologyOff)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return []error{fmt.Errorf("spec: %s: %w", path, err)}
	}
	if v.Type() == reflect.TypeFor[topology.Bytes]() {
		if _, err := topology.ParseSize(strings.Trim(string(text), `"`)); err != nil {
			return []error{fmt.Errorf("spec: %s is %s: %w", path, shorten(string(text)), err)}
		}
	}
	if err = json.Unmarshal(text, v.Addr().Interface()); err == nil {
		return nil
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		err = fmt.Errorf("allowed: %s", describe(v.Type()))
	}
	return []error{fmt.Errorf("spec: %s is %s: %w", path, shorten(string(text)), err)}
}

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func decodeStruct(path string, tree any, v reflect.Value) []error {
	given, ok := tree.(map[string]any)
	if !ok {
		text, _ := json.Marshal(tree)
		return []error{
			fmt.Errorf("spec: %s is %s; allowed: the fields %s", orSpec(path), shorten(string(text)),
				strings.Join(fieldNames(v.Type()), ", ")),
		}
	}
	var errs []error
	names := fieldNames(v.Type())
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if len(errs) >= maxErrors {
			return append(errs, fmt.Errorf("spec: %s: more errors", orSpec(path)))
		}
		i := slices.Index(names, key)
		if i < 0 {
			errs = append(errs, unknownField(path, key, names))
			continue
		}
		errs = append(errs, decode(join(path, key), given[key], v.Field(i))...)
	}
	return errs
}

func decodeSlice(path string, tree any, v reflect.Value) []error {
	given, ok := tree.([]any)
	if !ok {
		text, _ := json.Marshal(tree)
		return []error{fmt.Errorf("spec: %s is %s; allowed: a list", path, shorten(string(text)))}
	}
	var errs []error
	v.Set(reflect.MakeSlice(v.Type(), len(given), len(given)))
	for i, entry := range given {
		if len(errs) >= maxErrors {
			return append(errs, fmt.Errorf("spec: %s: more errors", path))
		}
		at := fmt.Sprintf("%s[%d]", path, i)
		if entry == nil {
			errs = append(errs, fmt.Errorf("spec: %s is empty", at))
			continue
		}
		errs = append(errs, decode(at, entry, v.Index(i))...)
	}
	return errs
}

// fieldNames returns the JSON names of a struct's fields, in its order.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}

func describe(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text; put it in quotes"
	default:
		return t.String()
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func orSpec(path string) string {
	if path == "" {
		return "the document"
	}
	return path
}

func shorten(s string) string { return text.Shorten(s, 60) }
