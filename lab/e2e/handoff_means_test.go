package e2e_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// A mirrored VM whose kernel has no cpusets hands CPUs over by taking vCPUs offline. One without an agent has its
// minimum and takes part in nothing. Neither disturbs a VM that has both, and whose agent is reached by the VM's vsock.
// Show says which is which.
func TestLabHandoffByOtherMeans(t *testing.T) {
	rotate.Test(t, 1)
	labtest.NeedsLab(t)
	t.Parallel()
	l := bootHandoff(t, "square4", handoffPolicy, hostCPUs)
	for name, words := range map[string]string{"old": "cgroup_disable=cpuset", "bare": "noagent", "new": "vsock"} {
		l.must(t, "create", "--policy", "/run/policy.yaml", "--name", name, "--sharing", "handoff", "--memory", "160M",
			"--kernel", lab.GuestKernel, "--initrd", lab.MirrorInitrd, "--append", lab.GuestCommandLine+" "+words)
	}
	l.replacePortByVSock(t, "new")
	for _, name := range []string{"old", "bare", "new"} {
		if err := l.AwaitGuest(l.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitRecord(t, 2*time.Minute, `"new":{[^}]*"means":"partition"`)
	l.awaitRecord(t, 2*time.Minute, `"old":{[^}]*"means":"offline"`)
	end := l.witness(t, 20*time.Millisecond, "old=1", "bare=1", "new=1")
	for _, busy := range [][2]string{{"old", "new"}, {"new", "old"}, {"old", "new"}} {
		l.load(t, busy[0], busy[1])
		l.awaitCPUs(t, 2*time.Minute, busy[0], 2)
		l.awaitCPUs(t, 2*time.Minute, busy[1], 1)
		l.awaitCPUs(t, time.Second, "bare", 1)
	}
	for name, said := range map[string]string{
		"old": "its agent frees vCPUs by means offline", "new": "its agent frees vCPUs by means partition",
		"bare": "no agent has reported",
	} {
		if text := l.must(t, "show", name).stdout; !strings.Contains(text, said) {
			t.Errorf("show %s does not say %q:\n%s", name, said, text)
		}
	}
	if seen := end(); len(seen.Violations) > 0 || seen.Judged == 0 {
		t.Errorf("%d run times judged; violations: %v", seen.Judged, seen.Violations)
	}
}

var agentPort = regexp.MustCompile(`(?s)<channel type='unix'>.*?</channel>`)

// replacePortByVSock defines a VM with a vsock instead of its virtio-serial port, and starts it again.
func (l *labHost) replacePortByVSock(t *testing.T, name string) {
	t.Helper()
	if err := l.AddVSock(l.ctx); err != nil {
		t.Fatal(err)
	}
	definition := l.sh(t, "virsh dumpxml --inactive "+name)
	if len(agentPort.FindAllString(definition, -1)) != 1 {
		t.Fatalf("VM %s has not one channel:\n%s", name, definition)
	}
	changed := agentPort.ReplaceAllString(definition, "<vsock model='virtio'><cid auto='yes'/></vsock>")
	file := "/run/" + name + ".xml"
	l.expect(t, 0, "sh", "-c", `printf %s "$1" > "$0"`, file, changed)
	l.sh(t, "virsh destroy "+name+"; virsh define "+file+" && virsh start "+name)
	if live := l.sh(t, "virsh dumpxml "+name); agentPort.MatchString(live) || !strings.Contains(live, "<vsock") {
		t.Fatalf("VM %s runs with its port, or without a vsock:\n%s", name, live)
	}
}
