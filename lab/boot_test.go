package lab

import (
	"errors"
	"testing"
)

func TestPlainText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS (version 1.17)\r\nBooting\n", "SeaBIOS (version 1.17)\nBooting\n"},
		{"[  1.0] rcu: \tdetected\x00 \xff stalls\x1b[1;31m!", "[  1.0] rcu: detected  stalls!"},
		{"a\x1b[31", "a[31"},
	} {
		if got := plainText([]byte(c.in)); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestFailed(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		status int
		stderr string
		err    error
		want   string
	}{
		{0, "a warning", nil, ""},
		{1, "first\nlast\n", nil, "status 1: last"},
		{0, "unrelated", broken, "broken"},
	} {
		err := failed(c.status, []byte(c.stderr), c.err)
		if got := errorText(err); got != c.want || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%d %q %v: %q, want %q", c.status, c.stderr, c.err, got, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
