package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
)

// labHost is a lab with libvirt and numavisor in it.
type labHost struct {
	*lab.Host
	ctx context.Context
	// hangs is the test in which a command did not end; empty: none. What runs
	// afterwards in this lab proves nothing, and fails at once.
	hangs string
}

// boot returns a lab of its own for a test, with libvirt, the access counter
// switched off, and the guest image. It comes from a saved lab, so nothing that
// a test changes needs to be undone. Another test may run at the same time.
func boot(t *testing.T, shape string) *labHost {
	t.Helper()
	labtest.NeedsLab(t)
	t.Parallel()
	return bootWith(t, shape, lab.Options{Saved: true})
}

// bootWith boots a lab as the options say, with numavisor and libvirt. Without
// t.Parallel before it, no other lab runs: for tests that measure times.
func bootWith(t *testing.T, shape string, o lab.Options) *labHost {
	t.Helper()
	labtest.NeedsLab(t)
	binary, err := filepath.Abs("../../bin/numavisor")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"numavisor": binary}
	maps.Copy(files, o.Files)
	o.Files, o.Libvirt = files, true
	h := labtest.Boot(t, shape, o)
	if err := h.AddGuest(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &labHost{Host: h, ctx: context.Background()}
}

type result struct {
	status         int
	stdout, stderr string
}

// commandTime bounds one command in the lab, where everything runs some 30
// times slower; by the lab's clock, where that is slow.
const commandTime = 3 * time.Minute

func (l *labHost) run(t *testing.T, argv ...string) result {
	t.Helper()
	if l.hangs != "" {
		t.Fatalf("not run: the lab has a command that did not end, see %s: %s", l.hangs, strings.Join(argv, " "))
	}
	ctx, cancel := context.WithTimeout(l.ctx, commandTime*time.Duration(l.Shape.Slowdown))
	defer cancel()
	var out, errOut bytes.Buffer
	status, err := l.Run(ctx, argv, &out, &errOut)
	if errors.Is(err, context.DeadlineExceeded) {
		l.hangs = t.Name()
		t.Log(l.Stacks(l.ctx))
	}
	if err != nil {
		labtest.NoteFault(t, err)
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out.String(), errOut.String())
	}
	return result{status, out.String(), errOut.String()}
}

func (l *labHost) numavisor(t *testing.T, args ...string) result {
	t.Helper()
	return l.run(t, append([]string{"numavisor"}, args...)...)
}

// must runs numavisor and requires status 0.
func (l *labHost) must(t *testing.T, args ...string) result {
	t.Helper()
	r := l.numavisor(t, args...)
	if r.status != 0 {
		t.Fatalf("numavisor %s: status %d\n%s%s", strings.Join(args, " "), r.status, r.stdout, r.stderr)
	}
	return r
}

// sh runs a shell script and requires status 0.
func (l *labHost) sh(t *testing.T, script string) string {
	t.Helper()
	r := l.run(t, "bash", "-c", script)
	if r.status != 0 {
		t.Fatalf("%s: status %d\n%s%s", script, r.status, r.stdout, r.stderr)
	}
	return r.stdout
}

type view struct{ operate.View }

func (l *labHost) show(t *testing.T, name string) view {
	t.Helper()
	var v view
	if err := json.Unmarshal([]byte(l.must(t, "show", name, "-o", "json").stdout), &v.View); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v view) memoryIn(t *testing.T, least float64) {
	t.Helper()
	if m := v.Truth.MemoryOnIntended; m == nil || *m < least {
		t.Errorf("memory on the intended nodes: %s, want %v; by node %v, cells %+v", shown(m), least,
			v.Truth.MemoryByNode, v.Cells)
	}
	if v.total() == 0 {
		t.Error("no memory was seen at all")
	}
}

func (v view) total() topology.Bytes {
	var sum topology.Bytes
	for _, b := range v.Truth.MemoryByNode {
		sum += b
	}
	return sum
}

func (v view) vcpusIn(t *testing.T, least float64) {
	t.Helper()
	if s := v.Truth.VCPUsOnIntended; s == nil || *s < least {
		t.Errorf("vCPUs on the intended CPUs: %s, want %v; threads %+v", shown(s), least, v.Threads)
	}
}

func shown(share *float64) string {
	if share == nil {
		return "unknown"
	}
	return fmt.Sprint(*share)
}

// pools returns the host's huge page pools as one line.
func (l *labHost) pools(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(
		l.sh(t, "cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages | tr '\\n' ' '"))
}

// foreign is a VM that Numavisor did not create.
type foreign struct {
	name                     string
	memoryMiB, vcpus         int
	numatune, backing, cells string
	cputune                  string
	onDemand                 bool // else all memory is allocated at start
	persistent               bool // with a stored configuration
}

// startForeign starts a VM by libvirt alone.
func (l *labHost) startForeign(t *testing.T, f foreign) {
	t.Helper()
	l.startAllForeign(t, f)
}

// startAllForeign starts several VMs at the same time.
func (l *labHost) startAllForeign(t *testing.T, all ...foreign) {
	t.Helper()
	var script strings.Builder
	for _, f := range all {
		start := "virsh -q create /tmp/" + f.name + ".xml --paused"
		if f.persistent {
			start = "virsh -q define /tmp/" + f.name + ".xml && virsh -q start " + f.name + " --paused"
		}
		fmt.Fprintf(&script, "cat > /tmp/%s.xml <<'X'\n%s\nX\n{ %s || touch /run/failed; } &\n", f.name, f.xml(), start)
	}
	l.sh(t, "rm -f /run/failed\n"+script.String()+"wait; [ ! -e /run/failed ]")
}

func (f foreign) xml() string {
	tune := ""
	if f.numatune != "" {
		tune = "<numatune>" + f.numatune + "</numatune>"
	}
	if f.cputune != "" {
		tune += "<cputune>" + f.cputune + "</cputune>"
	}
	allocation := "<allocation mode='immediate'/>"
	if f.onDemand {
		allocation = ""
	}
	return fmt.Sprintf(
		`<domain type='kvm'><name>%s</name><memory unit='MiB'>%d</memory><vcpu>%d</vcpu>%s<memoryBacking>%s%s</memoryBacking>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><cpu mode='host-passthrough'>%s</cpu>
<devices><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
		f.name,
		f.memoryMiB,
		f.vcpus,
		tune,
		f.backing,
		allocation,
		f.cells,
	)
}

// mostlyOn reads the last line of numastat -p: MiB per node and the total.
func mostlyOn(totals string, node int) bool {
	fields := strings.Fields(totals)
	if len(fields) < node+3 {
		return false
	}
	here, err1 := strconv.ParseFloat(fields[1+node], 64)
	all, err2 := strconv.ParseFloat(fields[len(fields)-1], 64)
	return err1 == nil && err2 == nil && all > 0 && here/all > 0.98
}
