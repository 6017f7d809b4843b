package guest

import "errors"

// Failures that every hypervisor's driver reports, whatever its own error
// says; find them with errors.Is.
var (
	// ErrNotFound means that the hypervisor has no guest of the name.
	ErrNotFound = errors.New("there is no such VM")
	// ErrExists means that the name is taken.
	ErrExists = errors.New("a VM of this name exists already")
	// ErrRefused means that the hypervisor lacks the function, or cannot apply it
	// to this guest in its present state; a retry changes nothing.
	ErrRefused = errors.New("the hypervisor refuses it")
	// ErrTransient means that the guest has no stored configuration.
	ErrTransient = errors.New("the VM has no stored configuration")
)
