// Package guestagent is what runs in a mirrored guest: it takes vCPUs out of the
// guest's scheduling and puts them back as the host's grants say, and reports the
// guest's demand.
//
// It uses the standard library and golang.org/x/sys only, has one goroutine that
// waits in poll(2), and no network. If the host does not answer, the guest
// continues with the vCPUs that it has.
package guestagent
