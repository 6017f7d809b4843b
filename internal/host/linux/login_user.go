package linux

import (
	"fmt"
	"regexp"
	"strconv"
)

// noLogin is the content of /proc/self/loginuid in a process without a login
// session.
const noLogin = "4294967295"

// userName matches the user names that LoginUser accepts: the name goes into
// the journal and to terminals.
var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@+$\\-]{0,63}$`)

// LoginUser names the user who started this process, as "alice (uid 1000)": the
// user who logged in (/proc/self/loginuid, which survives su and sudo), else
// the user who ran sudo, else the user of the process. SUDO_UID counts only for
// root, since any user can set it. A uid without a usable name is "uid 1000".
func (r Root) LoginUser(uid int, sudoUID string, lookup func(uid string) (name string, err error)) string {
	id := strconv.Itoa(uid)
	if login, err := r.word("proc", "self", "loginuid"); err == nil && login != noLogin && isUID(login) {
		id = login
	} else if uid == 0 && isUID(sudoUID) {
		id = sudoUID
	}
	name, err := lookup(id)
	if err != nil || !userName.MatchString(name) {
		return "uid " + id
	}
	return fmt.Sprintf("%s (uid %s)", name, id)
}

// isUID reports whether the text is a user's number as the kernel writes it.
func isUID(text string) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && strconv.FormatUint(n, 10) == text
}
