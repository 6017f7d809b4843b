package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/strictyaml"
)

// checker collects the fields whose values are not allowed.
type checker struct{ errs []error }

func (c *checker) fail(field string, value any, allowed string, args ...any) {
	c.errs = append(c.errs,
		&strictyaml.FieldError{Field: field, Value: fmt.Sprint(value), Allowed: fmt.Sprintf(allowed, args...)})
}

// number refuses NaN, too.
func (c *checker) number(field string, value, least, most float64) {
	if !(value >= least && value <= most) {
		c.fail(field, value, "%v to %v", least, most)
	}
}

func (c *checker) time(field string, value, most Duration) {
	if value < 0 || value > most {
		c.fail(field, value, "0s to %v", most)
	}
}

// oneOf checks a word; the empty one means the default. A field may allow fewer
// words than its type has.
func oneOf[T interface {
	~string
	strictyaml.Worded
}](c *checker, field string, value T, allowed ...T) {
	words := value.Words()
	if len(allowed) > 0 {
		words = nil
	}
	for _, w := range allowed {
		words = append(words, string(w))
	}
	if value != "" && !slices.Contains(words, string(value)) {
		c.fail(field, fmt.Sprintf("%q", value), "%s", strings.Join(words, ", "))
	}
}
