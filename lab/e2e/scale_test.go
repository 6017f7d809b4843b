package e2e_test

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// scaleShape has a node on which two VMs of four vCPUs share four CPUs, and one for the host.
const scaleShape = `name: scaled
nodes: [{cpus: 4, memory: 1G}, {cpus: 2, memory: 1G}]
`

// Two ordinary VMs share the CPUs of a node: the number of vCPUs that each one uses follows the load of both, also
// after the daemon and an agent were killed.
func TestLabScale(t *testing.T) {
	rotate.Test(t, 2)
	labtest.NeedsLab(t)
	t.Parallel()
	shape := filepath.Join(t.TempDir(), "scaled.yaml")
	if err := os.WriteFile(shape, []byte(scaleShape), 0o600); err != nil {
		t.Fatal(err)
	}
	l := bootHandoff(t, shape, "overcommit: 2\n", "4,5")
	for _, name := range []string{"w1", "w2"} {
		l.must(t, "create", "--policy", "/run/policy.yaml", "--name", name, "--sharing", "scale", "--vcpus", "4",
			"--memory", "160M", "--nodes", "0", "--kernel", lab.GuestKernel, "--initrd", lab.MirrorInitrd, "--append",
			lab.GuestCommandLine)
	}
	for _, name := range []string{"w1", "w2"} {
		if err := l.AwaitGuest(l.ctx, name); err != nil {
			t.Fatal(err)
		}
	}

	l.types(t, "w1", "anneal 100 2") // 'make bench-anneal' measures with it, and no other test runs it
	l.await(t, "the program ends", func() bool { return len(l.said(t, "w1", "ANNEAL")) > 0 })
	l.types(t, "w1", "run 500 3600 0 4")
	l.awaitUsed(t, "w1", 3, 4) // the other one always has one, and each report of its threads may ask for one more
	l.types(t, "w2", "run 500 3600 0 4")
	l.awaitUsed(t, "w1", 2, 2)
	l.awaitUsed(t, "w2", 2, 2)
	l.await(t, "show names two vCPUs", func() bool {
		text := l.must(t, "show", "w2").stdout
		return strings.Contains(text, " 2 of 4 ") && strings.Contains(text, "vCPUs by demand: uses vCPUs 0") &&
			strings.Contains(text, "its agent frees vCPUs by means partition")
	})

	l.sh(t, "kill -9 $(cat /run/daemon.pid)")
	l.types(t, "w2", "agent kill")
	l.types(t, "w2", "stop")
	l.startDaemon(t)
	l.hostAside(t, "4,5")
	l.awaitUsed(t, "w1", 3, 4)
}

// awaitUsed waits until a VM uses a number of its four vCPUs between two others.
func (l *labHost) awaitUsed(t *testing.T, name string, least, most int) {
	t.Helper()
	l.await(t, fmt.Sprintf("%s uses %d to %d vCPUs", name, least, most), func() bool {
		before := len(l.said(t, name, "STAT"))
		l.types(t, name, "stat")
		l.await(t, name+" says what it uses", func() bool { return len(l.said(t, name, "STAT")) > before })
		said := l.said(t, name, "STAT")[before]
		parked, err := strconv.ParseUint(said[len(said)-1], 16, 64)
		if err != nil {
			t.Fatalf("%s said %v", name, said)
		}
		used := 4 - bits.OnesCount64(parked)
		t.Logf("%v: %s uses %d vCPUs", time.Now().Format("15:04:05"), name, used)
		return used >= least && used <= most
	})
}
