package libvirt

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
)

// Kinds of failures of libvirt itself; find them with errors.Is. The kinds that
// every hypervisor has are in package guest: guest.ErrNotFound and others.
var (
	ErrNoLibrary  = errors.New("libvirt's library is not installed")
	ErrNoDaemon   = errors.New("the libvirt daemon does not answer")
	ErrDenied     = errors.New("libvirt refuses access")
	ErrNotRunning = errors.New("the VM is in a state that does not allow it")
	ErrBusy       = errors.New("libvirt is busy with the VM")
	ErrTimeout    = errors.New("libvirt did not answer in time")
	// ErrUnknownOutcome comes with a control call that was interrupted: it may have
	// taken effect or not, so read the state again before anything else.
	ErrUnknownOutcome = errors.New("its outcome is unknown")
)

// remedies are the remedies for each kind.
var remedies = map[error]string{
	ErrNoLibrary: "install it (Debian: apt install libvirt-daemon-system, Fedora: dnf install " +
		"libvirt-daemon-kvm)",
	ErrNoDaemon: "start it (systemctl start libvirtd, or virtqemud where daemons are split), or set " +
		"LIBVIRT_DEFAULT_URI",
	ErrDenied: "run as root, or join the group libvirt",
	ErrBusy:   "wait for the other operation to end (virsh domjobinfo GUEST) and try again",
	ErrTimeout: "check whether 'virsh list' answers: the daemon hangs, or one VM's start, stop or hook script " +
		"blocks it",
	ErrUnknownOutcome:  "read the VM's state again before repeating it",
	guest.ErrTransient: "it ends with the VM; define the VM to make it persistent",
}

// Error is a failed libvirt call.
type Error struct {
	Op    string  // the attempted call: "pin vCPU 3 to CPUs 4-7"
	Guest string  // the guest; may be empty
	Kinds []error // one of the above or of package guest; may be empty
	Err   error   // libvirt's own error
}

// Error says what was tried on what, why it failed and what to do.
func (e *Error) Error() string { return e.text(plain(e.Err)) }

// Brief is the error without libvirt's own message.
func (e *Error) Brief() string { return e.text("") }

// Causes returns libvirt's own message. If the error has no kind, its brief text
// does not say why the call failed: Causes then returns nothing.
func (e *Error) Causes() []string {
	if message := plain(e.Err); message != "" && len(e.Kinds) > 0 {
		return []string{message}
	}
	return nil
}

// text joins the parts of the error around libvirt's own message.
func (e *Error) text(message string) string {
	var b strings.Builder
	if e.Guest != "" {
		fmt.Fprintf(&b, "VM %s: ", e.Guest)
	}
	b.WriteString(e.Op)
	for _, k := range e.Kinds {
		b.WriteString(": " + k.Error())
	}
	if message != "" {
		fmt.Fprintf(&b, ": %s", message)
	}
	for _, k := range e.Kinds {
		if r := remedies[k]; r != "" {
			b.WriteString("; " + r)
		}
	}
	return b.String()
}

// Unwrap gives kinds and cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error { return append([]error{e.Err}, e.Kinds...) }

// plain returns libvirt's message without the numbers around it.
func plain(err error) string {
	var own libvirt.Error
	switch {
	case err == nil, errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.As(err, &own):
		return own.Message
	default:
		return err.Error()
	}
}

// fail wraps the result of a call.
func fail(op, guest string, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	return &Error{Op: op, Guest: guest, Kinds: kindsOf(err), Err: err}
}

// kindsOf sorts an error of the bindings or of a context.
func kindsOf(err error) []error {
	var kinds []error
	var own libvirt.Error
	switch {
	case errors.Is(err, errLost):
		kinds = append(kinds, ErrNoDaemon)
	case errors.Is(err, errCrowded), errors.Is(err, context.DeadlineExceeded):
		kinds = append(kinds, ErrTimeout)
	case errors.As(err, &own):
		if k := kindOfCode(own); k != nil {
			kinds = append(kinds, k)
		}
	}
	for _, k := range []error{ErrNotRunning, guest.ErrTransient} { // see invalidState
		if errors.Is(err, k) {
			kinds = []error{k}
		}
	}
	if errors.Is(err, ErrUnknownOutcome) {
		kinds = append(kinds, ErrUnknownOutcome)
	}
	return kinds
}

// noLibrary reports that libvirt.so.0 could not be loaded. The Go binding
// reports that with this code and domain, which libvirt itself never combines,
// and shares them with functions that the library lacks. The file's name tells
// both apart; it is the binding's or the loader's text and never translated. A
// message of libvirt may hold a VM of that name: its domain differs.
func noLibrary(err libvirt.Error) bool {
	return err.Code == libvirt.ERR_INTERNAL_ERROR && err.Domain == libvirt.FROM_NONE &&
		strings.Contains(err.Message, "libvirt.so.0")
}

func kindOfCode(err libvirt.Error) error {
	switch {
	case noLibrary(err):
		return ErrNoLibrary
	case broken(err) && strings.Contains(err.Message, "Permission denied"):
		// The errno is in int1, which the Go binding does not give. In another
		// language this is ErrNoDaemon: only the remedy that is shown differs.
		return ErrDenied
	case broken(err):
		return ErrNoDaemon
	}
	switch err.Code {
	case libvirt.ERR_NO_DOMAIN, libvirt.ERR_INVALID_DOMAIN:
		return guest.ErrNotFound
	case libvirt.ERR_DOM_EXIST:
		return guest.ErrExists
	case libvirt.ERR_AUTH_FAILED,
		libvirt.ERR_AUTH_CANCELLED,
		libvirt.ERR_AUTH_UNAVAILABLE,
		libvirt.ERR_ACCESS_DENIED,
		libvirt.ERR_OPERATION_DENIED:
		return ErrDenied
	case libvirt.ERR_OPERATION_TIMEOUT, libvirt.ERR_RESOURCE_BUSY:
		return ErrBusy
	case libvirt.ERR_INVALID_ARG,
		libvirt.ERR_NO_SUPPORT,
		libvirt.ERR_CONFIG_UNSUPPORTED,
		libvirt.ERR_ARGUMENT_UNSUPPORTED,
		libvirt.ERR_OPERATION_INVALID, // see Driver.tune for its reasons
		libvirt.ERR_OPERATION_UNSUPPORTED:
		return guest.ErrRefused
	default:
	}
	return nil // the code says nothing that a caller acts on
}

// broken reports that the connection itself is unusable: the daemon is absent,
// restarting, or closed it.
func broken(err error) bool {
	var own libvirt.Error
	if !errors.As(err, &own) {
		return errors.Is(err, errLost)
	}
	switch own.Code {
	case libvirt.ERR_RPC, libvirt.ERR_NO_CONNECT, libvirt.ERR_INVALID_CONN:
		return true
	case libvirt.ERR_SYSTEM_ERROR, libvirt.ERR_INTERNAL_ERROR:
		return own.Domain == libvirt.FROM_RPC || own.Domain == libvirt.FROM_REMOTE
	default:
		return false
	}
}
