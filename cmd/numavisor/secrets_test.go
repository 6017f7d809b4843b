package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/topology"
)

// transcript collects what a fleet writes: logs of server and daemon at debug level, output of commands, answers to
// requests that failed.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *transcript) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *transcript) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *transcript) note(err error) {
	if err != nil {
		_, _ = r.Write([]byte(err.Error() + "\n")) // it never fails
	}
}

// A fleet's life, with secrets also in places where they do not belong: no log line, no error and no answer to a
// failed request has one.
func TestSecrets_AreInNoLogLineOrError(t *testing.T) {
	var seen transcript
	w, f := oneHostFleetWith(t, slog.New(slog.NewTextHandler(&seen, &slog.HandlerOptions{Level: slog.LevelDebug})))
	join, err := f.admin.CreateJoin(t.Context(), fleetapi.JoinCreate{})
	if err != nil {
		t.Fatal(err)
	}
	const password = "hunter2-of-cloud-init"
	secrets := map[string]string{"the admin's token": f.token, "the used join token": f.join, "a join token": join.Token,
		"the cloud-init password": password}
	_, key, err := f.ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	secrets["the CA's key"] = strings.Split(string(key), "\n")[1]
	secrets["the host's key"] = keyOfMember(t, f.folder)

	vm := fleetapi.VMCreate{Spec: guest.Spec{Name: "web1", VCPUs: 2, Memory: 64 * topology.MiB},
		Machine: fleet.Machine{CloudInit: "#cloud-config\npassword: " + password + "\n"}}
	if _, err := f.admin.CreateVM(t.Context(), vm, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, exists := w.Guest("web1")
		text := seen.String()
		return exists && strings.Contains(text, "connected to the fleet") && strings.Contains(text, "vm=web1")
	})
	_, err = f.admin.CreateVM(t.Context(), vm, fleetapi.Change{})
	seen.note(err) // it exists
	vm.Spec.Memory = 1
	_, err = f.admin.CreateVM(t.Context(), vm, fleetapi.Change{Key: f.token})
	seen.note(err)
	for _, token := range []string{f.token, f.join, "nvj_unknown"} { // of a user, used, unknown
		_, err := agent.Join(t.Context(), filepath.Join(t.TempDir(), "x"), agent.JoinRequest{Server: f.address,
			Token: token, Fingerprint: f.ca.Fingerprint(), Host: "other", ID: "other"})
		if err == nil {
			t.Error("a host joined with a token that is not for it")
		}
		seen.note(err)
	}
	f.misplace(t, &seen, secrets)
	for _, command := range [][]string{
		{"show", "--server", "test", f.token}, {"token", "list", "--server", "test", f.token},
		{"hosts", "--server", "https://admin:" + f.token + "@" + f.address},
		{"hosts", "--server", "https://" + f.address + "/" + f.token},
		{"delete", "--server", "test", join.Token}, {"migrate", "--server", "test", "web1", "--to", f.token},
		{"token", "revoke", "--server", "test", "admin", f.token},
	} {
		run(command, &seen, &seen)
	}
	if _, err := f.admin.DeleteVM(t.Context(), "web1", fleetapi.Change{}); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { _, exists := w.Guest("web1"); return !exists })
	text := seen.String()
	for what, secret := range secrets {
		for line := range strings.Lines(text) {
			if strings.Contains(line, secret) {
				t.Errorf("%s is in: %s", what, line)
			}
		}
	}
}

// keyOfMember returns a part of the private key with which a host's daemon connects.
func keyOfMember(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // a folder
		}
		_, after, has := strings.Cut(string(data), "PRIVATE KEY-----")
		if has {
			return strings.TrimPrefix(strings.TrimPrefix(after, "\\n"), "\n")[:40]
		}
	}
	t.Fatal("the daemon's folder has no private key")
	return ""
}

// misplace sends secrets in parts of requests where they do not belong, and notes the answers.
func (f *testFleet) misplace(t *testing.T, seen *transcript, secrets map[string]string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.ca.CertificatePEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	web := &http.Client{Transport: transport}
	for _, secret := range secrets {
		quoted, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		text := string(quoted)
		escaped := strings.NewReplacer("/", "%2F", "+", "%2B", "=", "%3D").Replace(secret)
		for _, q := range []struct{ method, path, body, header, value string }{
			{"GET", "/v1/vms?token=" + escaped, "", "", ""},
			{"GET", "/v1/vms?limit=" + escaped, "", "", ""},
			{"GET", "/v1/vms?state=" + escaped, "", "", ""},
			{"GET", "/v1/vms?cursor=a&cursor=" + escaped, "", "", ""},
			{"GET", "/v1/vms", "", "Authorization", "Basic " + secret},
			{"GET", "/v1/vms", "", "Authorization", secret},
			{"POST", "/v1/vms/web1/start", "", "If-Match", secret},
			{"POST", "/v1/vms", `{"spec": {"name": "x", "vcpus": 1, "memory": "1G"}, "project": ` + text + `}`, "", ""},
			{"POST", "/v1/vms", `{"spec": {"name": "x", "vcpus": ` + text + `, "memory": ` + text + `}}`, "", ""},
			{"POST", "/v1/vms", `{"spec": {}, "machine": {"cloud_init": ` + text + `, "user": ` + text + `}}`, "", ""},
			{"POST", "/v1/vms", `{` + text + `: 1}`, "", ""},
			{"POST", "/v1/vms", `{"machine": {"cloud_init": ` + text + `, "kernel": "/k"}`, "", ""},
			{"POST", "/v1/vms", `{"spec": {"name": "x", "vcpus": 1, "memory": "1G", "devices": [{"address": ` + text +
				`}]}}`, "", ""},
		} {
			if !strings.HasPrefix(secret, "nv") && !strings.Contains(q.body, "cloud_init") {
				continue // it is a word like any other
			}
			r, err := http.NewRequestWithContext(t.Context(), q.method, "https://"+f.address+q.path,
				strings.NewReader(q.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+f.token)
			r.Header.Set("Content-Type", "application/json")
			if q.header != "" {
				r.Header.Set(q.header, q.value)
			}
			answer, err := web.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close() // read
			if err != nil || answer.StatusCode < 400 || answer.StatusCode >= 500 {
				t.Errorf("%s %.20s: status %d, %v", q.method, q.path, answer.StatusCode, err)
			}
			_, _ = seen.Write(append(append([]byte(q.method+": "), data...), '\n')) // it never fails
		}
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
		}
	}
}
