package fleetapi

import "net/http"

// Scope is what a user must belong to for an operation, in addition to the role.
type Scope string

// Scopes of operations.
const (
	// OfProject means the project of the VM or of the document.
	OfProject Scope = "project"
	// OfFleet means all projects: the operation concerns the fleet.
	OfFleet Scope = "fleet"
	// OfNobody means that any user may do it, and sees what is theirs.
	OfNobody Scope = "user"
)

// Words returns the scopes.
func (Scope) Words() []string { return []string{string(OfProject), string(OfFleet), string(OfNobody)} }

// Operation is one operation of the API.
type Operation struct {
	ID     string
	Method string
	Path   string
	Tag    string
	Role   Role // empty: anybody, without a token
	Scope  Scope
	Status int // of success; 0: 200
	What   string
	// Fleet says that only the server of a fleet does it, and not the daemon of one host.
	Fleet bool
}

// What does an operation: the server of a fleet alone, or the daemon of one host as well.
const (
	ofFleets = true
	ofHosts  = false
)

// Operations lists all operations: which role may do what, and what the daemon of one host does, is decided here and
// nowhere else.
//
//nolint:funlen // a table
func Operations() []Operation {
	return []Operation{
		{"info", "GET", "/v1/info", "server", "", OfNobody, 0, "Get the versions of the server", ofHosts},
		{"whoami", "GET", "/v1/me", "users", Viewer, OfNobody, 0, "Get the user of the token", ofHosts},

		{"list-hosts", "GET", "/v1/hosts", "hosts", Viewer, OfNobody, 0, "List hosts", ofHosts},
		{"get-host", "GET", "/v1/hosts/{host}", "hosts", Viewer, OfNobody, 0, "Get a host", ofHosts},
		{"list-nodes", "GET", "/v1/hosts/{host}/nodes", "hosts", Viewer, OfNobody, 0,
			"List the NUMA nodes of a host with their free room", ofHosts},
		{"get-inventory", "GET", "/v1/hosts/{host}/inventory", "hosts", Viewer, OfFleet, 0,
			"Get the inventory that a host reported, as 'numavisor capture' writes it", ofHosts},
		{"edit-host", "PATCH", "/v1/hosts/{host}", "hosts", Operator, OfFleet, 0,
			"Change rack, labels and preference of a host", ofFleets},
		{"cordon-host", "POST", "/v1/hosts/{host}/cordon", "hosts", Operator, OfFleet, 0,
			"Put no new VMs on a host", ofFleets},
		{"uncordon-host", "POST", "/v1/hosts/{host}/uncordon", "hosts", Operator, OfFleet, 0,
			"Put VMs on a host again, and end its draining", ofFleets},
		{"drain-host", "POST", "/v1/hosts/{host}/drain", "hosts", Operator, OfFleet, 0,
			"Migrate all VMs of a host to other hosts", ofFleets},
		{"declare-dead", "POST", "/v1/hosts/{host}/dead", "hosts", Admin, OfFleet, 0,
			"Declare that a host does not run its VMs and will not run them again: they are started elsewhere",
			ofFleets},
		{"declare-alive", "POST", "/v1/hosts/{host}/alive", "hosts", Admin, OfFleet, 0,
			"Use a host again that was declared dead and has removed its former VMs", ofFleets},
		{"remove-host", "DELETE", "/v1/hosts/{host}", "hosts", Admin, OfFleet, http.StatusNoContent,
			"Remove a host without VMs from the fleet", ofFleets},
		{"create-join", "POST", "/v1/joins", "hosts", Admin, OfFleet, http.StatusCreated,
			"Make a one-time token with which a host joins", ofFleets},

		{"create-vm", "POST", "/v1/vms", "vms", Operator, OfProject, http.StatusCreated,
			"Create a VM on the best host", ofHosts},
		{"adopt-vm", "POST", "/v1/adopt", "vms", Operator, OfFleet, http.StatusCreated,
			"Take a VM into the fleet that a host runs already", ofHosts},
		{"list-vms", "GET", "/v1/vms", "vms", Viewer, OfNobody, 0, "List VMs", ofHosts},
		{"get-vm", "GET", "/v1/vms/{vm}", "vms", Viewer, OfProject, 0, "Get a VM", ofHosts},
		{"get-placement", "GET", "/v1/vms/{vm}/placement", "vms", Viewer, OfProject, 0,
			"Get the host and the nodes of a VM, and why", ofHosts},
		{"start-vm", "POST", "/v1/vms/{vm}/start", "vms", Operator, OfProject, 0, "Start a VM", ofHosts},
		{"stop-vm", "POST", "/v1/vms/{vm}/stop", "vms", Operator, OfProject, 0, "Stop a VM", ofHosts},
		{"bind-vm", "POST", "/v1/vms/{vm}/bind", "vms", Operator, OfProject, 0,
			"Choose the nodes of a VM again, on its host", ofHosts},
		{"resize-vm", "POST", "/v1/vms/{vm}/resize", "vms", Operator, OfProject, 0,
			"Change the size of a VM that is stopped", ofHosts},
		{"migrate-vm", "POST", "/v1/vms/{vm}/migrate", "vms", Operator, OfProject, 0,
			"Migrate a running VM to another host", ofFleets},
		{"delete-vm", "DELETE", "/v1/vms/{vm}", "vms", Operator, OfProject, http.StatusAccepted,
			"Remove a VM from its host, then from the fleet", ofHosts},

		{"get-plan", "GET", "/v1/plan", "plans", Viewer, OfFleet, 0,
			"Get the migrations that would relieve hosts which cannot do so themselves, and why VMs stay", ofHosts},
		{"list-moves", "GET", "/v1/moves", "plans", Viewer, OfNobody, 0,
			"List migrations in progress and those that have ended, newest first", ofHosts},
		{"list-history", "GET", "/v1/history", "plans", Viewer, OfNobody, 0,
			"List what was done with VMs and hosts, newest first", ofHosts},
		{"get-headroom", "GET", "/v1/headroom", "plans", Viewer, OfFleet, 0,
			"Say for each host whether its VMs would fit on the others if it failed", ofFleets},

		{"list-alarms", "GET", "/v1/alarms", "hosts", Viewer, OfNobody, 0, "List the alarms of all hosts", ofHosts},
		{"watch-events", "GET", "/v1/events", "events", Viewer, OfNobody, 0,
			"Follow changes of hosts and VMs as server-sent events", ofHosts},

		{"list-projects", "GET", "/v1/projects", "projects", Viewer, OfNobody, 0,
			"List projects with quotas and use", ofFleets},
		{"get-project", "GET", "/v1/projects/{project}", "projects", Viewer, OfProject, 0, "Get a project", ofFleets},
		{"put-project", "PUT", "/v1/projects/{project}", "projects", Admin, OfFleet, 0,
			"Create a project or change its quotas", ofFleets},
		{"delete-project", "DELETE", "/v1/projects/{project}", "projects", Admin, OfFleet, http.StatusNoContent,
			"Remove a project without VMs", ofFleets},

		{"list-users", "GET", "/v1/users", "users", Admin, OfFleet, 0, "List users", ofFleets},
		{"get-user", "GET", "/v1/users/{user}", "users", Admin, OfFleet, 0, "Get a user", ofFleets},
		{"put-user", "PUT", "/v1/users/{user}", "users", Admin, OfFleet, 0,
			"Create a user or change role and projects", ofFleets},
		{"delete-user", "DELETE", "/v1/users/{user}", "users", Admin, OfFleet, http.StatusNoContent,
			"Remove a user and the user's tokens", ofFleets},
		{"create-token", "POST", "/v1/users/{user}/tokens", "users", Admin, OfFleet, http.StatusCreated,
			"Make a token for a user", ofFleets},
		{"delete-token", "DELETE", "/v1/users/{user}/tokens/{token}", "users", Admin, OfFleet, http.StatusNoContent,
			"Revoke a token", ofFleets},
		{"list-audit", "GET", "/v1/audit", "audit", Admin, OfFleet, 0,
			"List changes with who made them, newest first", ofFleets},
	}
}

// OperationByID returns an operation of the list.
func OperationByID(id string) (Operation, bool) {
	for _, op := range Operations() {
		if op.ID == id {
			return op, true
		}
	}
	return Operation{}, false
}

// Allows reports whether a user may do an operation that concerns a project; empty: none yet.
func (op *Operation) Allows(u *User, project string) bool {
	if op.Role == "" {
		return true
	}
	if u == nil || rank(u.Role) < rank(op.Role) {
		return false
	}
	switch op.Scope {
	case OfFleet:
		return u.Has(AllProjects)
	case OfProject:
		return project == "" || u.Has(project)
	case OfNobody:
	}
	return true
}

// rank orders roles; 0: not a role.
func rank(r Role) int {
	for i, name := range r.Words() {
		if name == string(r) {
			return i + 1
		}
	}
	return 0
}

// Has reports whether a user belongs to a project. Admins belong to all.
func (u *User) Has(project string) bool {
	if u.Role == Admin {
		return true
	}
	for _, p := range u.Projects {
		if p == AllProjects || p == project {
			return true
		}
	}
	return false
}
