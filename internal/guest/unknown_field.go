package guest

import (
	"fmt"
	"reflect"
	"strings"
)

// unknownField names the field and what was probably meant: the same name
// elsewhere in a spec, else the nearest name here, else all that are allowed here.
func unknownField(path, key string, here []string) error {
	at := shorten(fmt.Sprintf("%q", join(path, key)))
	plain := plainName(key)
	for _, name := range here {
		if plainName(name) == plain {
			return fmt.Errorf("spec: unknown field %s; did you mean %q?", at, join(path, name))
		}
	}
	for _, whole := range allFields("", reflect.TypeFor[Spec]()) {
		if plainName(whole[strings.LastIndexByte(whole, '.')+1:]) == plain {
			return fmt.Errorf("spec: unknown field %s; did you mean %q?", at, whole)
		}
	}
	best, nearest := 3, "" // more than two letters wrong is another word
	for _, name := range here {
		if d := editDistance(plain, plainName(name)); d < best && d < len(name) {
			best, nearest = d, name
		}
	}
	if nearest != "" {
		return fmt.Errorf("spec: unknown field %s; did you mean %q?", at, join(path, nearest))
	}
	return fmt.Errorf("spec: unknown field %s; allowed: %s", at, strings.Join(here, ", "))
}

// plainName makes "pageSize", "page-size" and "page_size" the same.
func plainName(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
}

// allFields returns the path of every field below t, lists' entries included.
func allFields(path string, t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && !decodesItself(t) {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || decodesItself(t) {
		return nil
	}
	var all []string
	for i, name := range fieldNames(t) {
		all = append(all, join(path, name))
		all = append(all, allFields(join(path, name), t.Field(i).Type)...)
	}
	return all
}

// editDistance is Levenshtein's, cut off for words that cannot be near: keys
// come from foreign files and may be long.
func editDistance(a, b string) int {
	if d := max(len(a), len(b)) - min(len(a), len(b)); d > 3 {
		return d
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
