package store

// Keys of a fleet's records. Names of hosts, VMs, projects and users contain no slash.
const (
	Hosts    = "/numavisor/hosts/"    // fleet.Host
	Reports  = "/numavisor/reports/"  // fleet.Report, by host
	Alive    = "/numavisor/alive/"    // by host, with a lease of the server that it is connected to
	VMs      = "/numavisor/vms/"      // fleet.VM
	Statuses = "/numavisor/statuses/" // fleet.VMStatus, by VM
	// Claims has a key for each host. Each transaction that changes what is reserved on a
	// host requires its revision and writes it, so that two decisions never use the same room.
	Claims   = "/numavisor/claims/"
	Projects = "/numavisor/projects/"
	Users    = "/numavisor/users/"
	Joins    = "/numavisor/joins/" // one-time tokens, by their hash
	Audit    = "/numavisor/audit/"
	Leader   = "/numavisor/leader"
	Schema   = "/numavisor/schema"
)
