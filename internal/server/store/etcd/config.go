package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Config says where the records are. Either Folder is set: the store then runs a server of etcd in this
// process, which is the only member of its cluster unless Member says otherwise. Or Endpoints
// is set: the store is a client of a cluster that others run.
//
// The server of a single member listens nowhere: only this process uses it.
type Config struct {
	// Folder has the data of the server in this process. It is made if it does not exist.
	Folder string
	Member Member

	// Endpoints are the URLs of an external cluster: https://HOST:PORT.
	Endpoints []string
	TLS       TLS // of the connections to Endpoints
	User      string
	Password  string

	// Timeout is how long a write waits for a quorum; a read waits for less. 0: 5 seconds.
	Timeout time.Duration
	// Retain is how long a watch can look back. 0: 5 minutes.
	Retain time.Duration
	// Quota is the largest size of the database, history included. 0: 4 GiB. For an external
	// cluster, its own configuration decides.
	Quota topology.Bytes
	// MinFree is the free space in the file system of Folder below which writes are refused. etcd
	// would end this process if a write failed. 0: 160 MiB, two files of its log and some.
	MinFree topology.Bytes
	// Log gets what etcd logs: its warnings and errors, and the rest as debug messages. nil: nothing.
	Log *slog.Logger
}

// Member describes the server in this process as one of several.
type Member struct {
	Name string
	// Listen is the URL at which the other members reach this one: https://IP:PORT.
	Listen string
	// Peers are the URLs of all members by name, this one included. Other members may see
	// this one at another URL than Listen.
	Peers map[string]string
	// Joins says that the cluster exists already and has this member on its list.
	Joins bool
	TLS   TLS // between members; required unless all of them are on this machine
}

// TLS names the PEM files of one side of mutually authenticated connections.
type TLS struct {
	CA, Certificate, Key string
	// Name must be in the certificates of other members; empty: any certificate of the CA is accepted.
	Name string
}

func (t TLS) empty() bool { return t == TLS{} }

func (t TLS) check(what string) error {
	if !t.empty() && (t.CA == "" || t.Certificate == "" || t.Key == "") {
		return fmt.Errorf("%s need three files for TLS: of the CA, of the certificate and of the key", what)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Retain == 0 {
		c.Retain = 5 * time.Minute
	}
	if c.Quota == 0 {
		c.Quota = 4 * topology.GiB
	}
	if c.MinFree == 0 {
		c.MinFree = 160 * topology.MiB
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate checks the configuration, and that no connection between machines goes without TLS.
func (c Config) Validate() error {
	switch {
	case c.Folder == "" && len(c.Endpoints) == 0:
		return errors.New("no folder for the records, and no endpoints of a cluster of etcd")
	case c.Folder != "" && len(c.Endpoints) > 0:
		return errors.New("both a folder for the records and endpoints of a cluster of etcd: choose one")
	case c.Timeout < 0 || c.Retain < 0:
		return errors.New("the timeout and the time to retain must not be negative")
	}
	if err := errors.Join(c.TLS.check("the endpoints"), c.Member.TLS.check("the members")); err != nil {
		return err
	}
	for _, endpoint := range c.Endpoints {
		if err := checkURL(endpoint, c.TLS); err != nil {
			return err
		}
	}
	return c.Member.validate()
}

func (m Member) validate() error {
	if len(m.Peers) == 0 {
		if m.Name != "" || m.Listen != "" || m.Joins {
			return errors.New("a member needs the URLs of all members of its cluster, its own included")
		}
		return nil
	}
	if m.Peers[m.Name] == "" {
		return fmt.Errorf("the member %q is not among the members of its cluster: %s", m.Name,
			strings.Join(slices.Sorted(maps.Keys(m.Peers)), ", "))
	}
	for name, at := range m.Peers {
		if strings.ContainsAny(name, "=,") || name == "" {
			return fmt.Errorf("the name %q of a member is empty or contains = or a comma", name)
		}
		if err := checkURL(at, m.TLS); err != nil {
			return fmt.Errorf("member %s: %w", name, err)
		}
	}
	return checkURL(m.Listen, m.TLS)
}

// checkURL requires TLS unless the URL does not leave this machine.
func checkURL(text string, t TLS) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	ip := net.ParseIP(u.Hostname())
	switch local := u.Scheme == "unix" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); {
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "unix" || u.Scheme != "unix" && u.Port() == "":
		return fmt.Errorf("%q is not of the form https://HOST:PORT", text)
	case u.Scheme == "https" && t.empty():
		return fmt.Errorf("%s needs the files for TLS", text)
	case u.Scheme != "https" && !local:
		return fmt.Errorf("%s is on another machine and has no TLS: use https", text)
	}
	return nil
}
