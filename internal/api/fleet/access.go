package fleetapi

import "time"

// Role is what a user may do.
type Role string

// Roles, each includes those before it.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Admin    Role = "admin"
)

// Words returns the roles, each includes those before it.
func (Role) Words() []string { return []string{string(Viewer), string(Operator), string(Admin)} }

// AllProjects in the list of a user's projects stands for all projects and the fleet itself.
const AllProjects = "*"

// DefaultProject is the project that each new fleet has. VMs of users of all projects belong to it
// unless they name another one.
const DefaultProject = "default"

// Quota limits what the VMs of a project may have in sum. 0: no limit.
type Quota struct {
	VMs       int   `json:"vms,omitempty" minimum:"0"`
	VCPUs     int   `json:"vcpus,omitempty" minimum:"0"`
	Exclusive int   `json:"exclusive_cpus,omitempty" minimum:"0"` // vCPUs with a CPU of their own
	Memory    Bytes `json:"memory_bytes,omitempty"`               // in pages of any size
	HugePages Bytes `json:"huge_page_bytes,omitempty"`            // the part of it in huge pages
}

// Project owns VMs.
type Project struct {
	Name     string `json:"name"`
	Quota    Quota  `json:"quota,omitzero"`
	Used     Quota  `json:"used,omitzero"`
	Revision int64  `json:"revision,omitempty"`
}

// Projects are all projects that a user belongs to.
type Projects struct {
	Projects []Project `json:"projects"`
}

// ProjectEdit is the settings of a project.
type ProjectEdit struct {
	Quota Quota `json:"quota,omitzero"`
}

// User may use the API. Users without a token cannot.
type User struct {
	Name     string   `json:"name"`
	Role     Role     `json:"role"`
	Projects []string `json:"projects,omitempty"` // or AllProjects
	Tokens   []Token  `json:"tokens,omitempty"`
	Revision int64    `json:"revision,omitempty"`
}

// Users are all users.
type Users struct {
	Users []User `json:"users"`
}

// UserEdit is the settings of a user.
type UserEdit struct {
	Role     Role     `json:"role" enum:"viewer,operator,admin"`
	Projects []string `json:"projects,omitempty" maxItems:"1000"`
}

// Token describes a token of a user. The token itself is not stored.
type Token struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
}

// TokenCreate asks for a token.
type TokenCreate struct {
	// Hours until the token expires; 0: never.
	Hours int `json:"hours,omitempty" minimum:"0" maximum:"87600"`
}

// NewToken is a token. It is shown once.
type NewToken struct {
	Token
	Secret string `json:"secret"`
}

// JoinCreate asks for a token with which one host can join.
type JoinCreate struct {
	Minutes int `json:"minutes,omitempty" minimum:"0" maximum:"10080"` // until it expires; 0: 60
}

// NewJoin is what the daemon of a host needs to join. The token works once.
// 'numavisor daemon --join-file' reads it.
type NewJoin struct {
	Address     string    `json:"address"` // of the server: HOST:PORT
	Token       string    `json:"token"`
	Expires     time.Time `json:"expires"`
	Fingerprint string    `json:"fingerprint"` // of the CA: sha256:HEX
	Command     string    `json:"command,omitempty"`
}

// AuditKind is what a change is about.
type AuditKind string

// Kinds of objects of the audit.
const (
	AboutHost    AuditKind = "host"
	AboutVM      AuditKind = "vm"
	AboutProject AuditKind = "project"
	AboutUser    AuditKind = "user"
	AboutJoin    AuditKind = "join" // a token with which a host joins
)

// Words returns the kinds of objects of the audit.
func (AuditKind) Words() []string {
	return []string{string(AboutHost), string(AboutVM), string(AboutProject), string(AboutUser), string(AboutJoin)}
}

// AuditEntry is a change that somebody made. Secrets are not in it.
type AuditEntry struct {
	ID        string    `json:"id"`
	At        time.Time `json:"at"`
	User      string    `json:"user"`
	Operation string    `json:"operation"`
	Kind      AuditKind `json:"kind"`   // of the object
	Name      string    `json:"name"`   // of the object
	Object    string    `json:"object"` // both, for people
	Before    any       `json:"before,omitempty"`
	After     any       `json:"after,omitempty"`
}

// Audit is a page of the audit, the newest first.
type Audit struct {
	Entries []AuditEntry `json:"entries"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// ServerInfo is what anybody may know about the server.
type ServerInfo struct {
	Version string `json:"version"`
	API     string `json:"api"` // its version: v1
}
