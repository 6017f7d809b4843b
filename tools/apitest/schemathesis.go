package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// settings is the configuration of one run. Names of what exists are drawn often, so that requests reach what the
// server does with them. The operations that change users get no names from earlier answers: a run must not end its
// own user, nor that of this tool. Hosts that a run may remove have no daemon.
//
// A valid request may conflict with the state (409) or with the revision of If-Match (412), and JSON Schema cannot
// express all that a spec must obey (422).
var settings = template.Must(template.New("settings").Parse(`
{{if .CA}}tls-verify = "{{.CA}}"
{{end}}request-timeout = 20.0
max-stream-events = 1
continue-on-failure = true
seed = {{.Seed}}
{{if .Token}}
[auth.openapi]
token = { bearer = "{{.Token}}" }
{{end}}
[generation]
database = "none"

[dictionaries]
hosts = { values = [{{.Hosts}}] }
spares = { values = [{{.Spares}}] }
vms = { values = [{{.VMs}}] }
projects = { values = ["default", "other"] }
users = { values = ["victim", "another"] }
memory = { values = ["256M", "1G", "1.5GiB", 268435456, 1073741824] }
vcpus = { values = [1, 2, 3] }

[parameters]
"path.host" = { dictionary = "hosts", probability = 0.7 }
"path.vm" = { dictionary = "vms", probability = 0.7 }
"path.project" = { dictionary = "projects", probability = 0.7 }
"path.user" = { dictionary = "users", probability = 0.7 }
"query.vm" = { dictionary = "vms", probability = 0.5 }
"query.host" = { dictionary = "hosts", probability = 0.5 }
"body.host" = { dictionary = "hosts", probability = 0.5 }
"body.to" = { dictionary = "hosts", probability = 0.5 }
"body.project" = { dictionary = "projects", probability = 0.8 }
"body.name" = { dictionary = "vms", probability = 0.5 }
"body.memory" = { dictionary = "memory", probability = 0.8 }
"body.vcpus" = { dictionary = "vcpus", probability = 0.8 }
"body.spec.memory" = { dictionary = "memory", probability = 0.9 }
"body.spec.vcpus" = { dictionary = "vcpus", probability = 0.9 }

[checks]
positive_data_acceptance = { enabled = true, expected-statuses = ["2xx", 401, 403, 404, 409, 412, 422] }
negative_data_rejection = { enabled = true, expected-statuses = [400, 401, 403, 404, 405, 409, 412, 413, 415, 422] }

[[operations]]
include-operation-id = ["put-user", "delete-user", "create-token", "delete-token"]
phases.stateful.enabled = false
phases.coverage.extra-data-sources.responses = false
phases.fuzzing.extra-data-sources.responses = false

[[operations]]
include-operation-id = ["remove-host", "declare-dead"]
phases.stateful.enabled = false
phases.coverage.extra-data-sources.responses = false
phases.fuzzing.extra-data-sources.responses = false
parameters = { "path.host" = { dictionary = "spares", probability = 0.7 } }
{{if .NeedFleet}}
[[operations]]
include-operation-id = [{{.NeedFleet}}]
enabled = false
{{end}}`))

// run is one run of schemathesis over the document that a URL serves.
type run struct {
	name, url string
	limit     time.Duration
	with      map[string]any // for settings
}

// schemathesis runs it, with its files in a folder.
func schemathesis(ctx context.Context, program, folder string, r run) error {
	path := filepath.Join(folder, r.name+".toml")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(settings.Execute(file, r.with), file.Close()); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, program, "--config-file", path, "run", r.url+"/openapi.json",
		"--checks", "all", "--max-time", fmt.Sprint(int(r.limit.Seconds())), "--no-color", "--warnings", "off",
		"--report", "ndjson", "--report-ndjson-path", filepath.Join(folder, r.name+".ndjson"))
	c.Dir = folder
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "COLUMNS=120")
	if err := c.Run(); err != nil {
		return fmt.Errorf("schemathesis: %w", err)
	}
	return nil
}

// runAs runs schemathesis as a user of a role.
func (f *aFleet) runAs(ctx context.Context, program string, r role, limit time.Duration, seed int) error {
	token, err := f.user(ctx, r)
	if err != nil {
		return err
	}
	err = schemathesis(ctx, program, f.folder, run{name: r.name, url: "https://" + f.address, limit: limit,
		with: map[string]any{"CA": f.path("server", "ca.pem"), "Seed": seed, "Token": token,
			"Hosts": quoted(hostName, hosts), "Spares": quoted(spare, spares), "VMs": quoted(vmName, vms)}})
	if err != nil {
		return err
	}
	return f.stillValid(ctx, token)
}

// user makes the user of a role, and returns a token; empty: for nobody.
func (f *aFleet) user(ctx context.Context, r role) (string, error) {
	if r.role == "" {
		return "", nil
	}
	name := "api-" + r.name
	if _, err := f.admin.PutUser(ctx, name, fleetapi.UserEdit{Role: r.role, Projects: r.projects}); err != nil {
		return "", err
	}
	made, err := f.admin.CreateToken(ctx, name, fleetapi.TokenCreate{})
	return made.Secret, err
}

// stillValid fails if the run's user is gone: the rest of the run would have been refused.
func (f *aFleet) stillValid(ctx context.Context, token string) error {
	if token == "" {
		return nil
	}
	c, err := f.client(token)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Me(ctx); err != nil {
		return fmt.Errorf("the run has ended its own user: %w", err)
	}
	return nil
}

func quoted(name func(int) string, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%q", name(i)))
	}
	return strings.Join(all, ", ")
}
