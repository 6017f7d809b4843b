package libvirt

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// DefaultURI is LIBVIRT_DEFAULT_URI, else the system's QEMU driver.
func DefaultURI() string { return cmp.Or(os.Getenv("LIBVIRT_DEFAULT_URI"), "qemu:///system") }

// ErrOtherHost means that a libvirt URI names another host, or may name one.
var ErrOtherHost = errors.New("names another host")

// CheckLocal returns an error unless a libvirt URI reaches the daemon of this
// host: it has no host name, and the transport is none or a Unix socket.
// Numavisor reads memory, threads and cgroups from this host's kernel, so the
// VMs of another host would be mixed with the CPUs and the memory of this one.
//
// An alias (uri_aliases in libvirt.conf) may stand for any host and is refused.
// CheckLocal cannot detect a Unix socket that is forwarded to another host.
func CheckLocal(uri string) error {
	u, err := url.Parse(uri)
	if err != nil {
		return err
	}
	driver, transport, _ := strings.Cut(u.Scheme, "+")
	switch {
	case driver == "":
		return errors.New("is not a URI but may be an alias of libvirt.conf, which may stand for another host; " +
			"use the URI itself, for example qemu:///system")
	case u.Host != "":
		return fmt.Errorf(
			"%w (%s), but topology and processes are read from this one; run numavisor there, or use a local URI "+
				"such as %s:///system",
			ErrOtherHost,
			u.Host,
			driver,
		)
	case transport != "" && transport != "unix":
		return fmt.Errorf(
			"%w, or may name one (transport %s), but topology and processes are read from this one; use a local "+
				"URI such as %s:///system",
			ErrOtherHost,
			transport,
			driver,
		)
	case u.Opaque != "":
		return fmt.Errorf("is not a libvirt URI; use for example %s:///system", driver)
	}
	return nil
}
