package linux

import (
	"errors"
	"strings"
	"testing"
)

func TestLoginUser(t *testing.T) {
	names := map[string]string{
		"0":    "root",
		"1000": "alice",
		"1001": "bob",
		"1002": "eve\x1b[2J",
		"1003": "operator\nroot",
		"1004": strings.Repeat("x", 65),
	}
	lookup := func(uid string) (string, error) {
		if name, ok := names[uid]; ok {
			return name, nil
		}
		return "", errors.New("unknown user")
	}
	for _, c := range []struct {
		name, login string // login: content of /proc/self/loginuid; empty: no such file
		uid         int
		sudo, want  string
	}{
		{"user of the process", "", 1000, "", "alice (uid 1000)"},
		{"no login", "4294967295\n", 0, "", "root (uid 0)"},
		{"sudo", "", 0, "1000", "alice (uid 1000)"},
		{"login before sudo", "1001", 0, "1000", "bob (uid 1001)"},
		{"login before su", "1001", 1000, "", "bob (uid 1001)"},
		{"SUDO_UID that a user forged", "", 1000, "0", "alice (uid 1000)"},
		{"SUDO_UID that is no number", "", 0, "1000; reboot", "root (uid 0)"},
		{"SUDO_UID too large", "", 0, "99999999999", "root (uid 0)"},
		{"SUDO_UID with a sign", "", 0, "+1000", "root (uid 0)"},
		{"uid without a name", "", 4711, "", "uid 4711"},
		{"name that would clear a terminal", "", 1002, "", "uid 1002"},
		{"name of two lines", "", 1003, "", "uid 1003"},
		{"name too long", "", 1004, "", "uid 1004"},
	} {
		proc := map[string]string{}
		if c.login != "" {
			proc["proc/self/loginuid"] = c.login
		}
		if got := files(t, proc).LoginUser(c.uid, c.sudo, lookup); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
