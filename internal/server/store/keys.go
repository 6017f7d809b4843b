package store

// Keys of a fleet's records. Names of hosts, VMs, projects and users contain no slash.
const (
	Hosts    = "/numavisor/hosts/"    // fleet.Host
	Reports  = "/numavisor/reports/"  // fleet.Report, by host
	Alive    = "/numavisor/alive/"    // by host, with a lease of the server that it is connected to
	Servers  = "/numavisor/servers/"  // the servers that run, by name, with their lease
	VMs      = "/numavisor/vms/"      // fleet.VM
	Statuses = "/numavisor/statuses/" // fleet.VMStatus, by VM and host
	Reasons  = "/numavisor/reasons/"  // why a VM was placed where it is, by VM
	// Remains has, by host and VM, records of VMs of which a host must remove what is left. Those of VMs that were
	// started elsewhere after the host was declared dead are to be deleted; those of VMs that have migrated to another
	// host name that host. A host that was declared dead is used again only if it has none.
	Remains = "/numavisor/remains/"
	// Claims has a key for each host. Each transaction that changes what is reserved on a
	// host requires its revision and writes it, so that two decisions never use the same room.
	Claims = "/numavisor/claims/"
	// Usage and Groups have a key for each project and for each group of VMs. As with Claims, each
	// transaction that adds a VM requires the revision and writes the key.
	Usage    = "/numavisor/usage/"
	Groups   = "/numavisor/groups/"
	Projects = "/numavisor/projects/"
	Users    = "/numavisor/users/"
	Joins    = "/numavisor/joins/" // one-time tokens, by their hash
	Audit    = "/numavisor/audit/"
	Repeats  = "/numavisor/repeats/" // results of requests with an Idempotency-Key
	Moves    = "/numavisor/moves/"   // migrations that have ended, ascending by the time of their beginning
	// Plans has the migrations that the leader advises or makes, with a lease of the server.
	Plans = "/numavisor/plans/"
	// Balancing is required and written by each transaction that begins a migration of a plan.
	Balancing = "/numavisor/balancing"
	All       = "/numavisor/"
	Leader    = "/numavisor/leader"
	Schema    = "/numavisor/schema"
)
