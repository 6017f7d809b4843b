package e2e_test

import (
	"strings"
	"testing"
)

// Numavisor leaves elements of a domain XML that it does not know unchanged,
// also in the configuration that libvirt stores.
func TestLabCreatePreservesForeignXML(t *testing.T) {
	l := boot(t, "square4")
	xml := `<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>k</name>
<title>preserved</title><description>written &amp; owned by others</description>
<metadata><own:app xmlns:own="http://example.org/own"><own:owner>someone</own:owner></own:app></metadata>
<memory unit='MiB'>64</memory><vcpu>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><cpu mode='host-passthrough'/>
<on_crash>preserve</on_crash>
<devices><controller type='usb' model='none'/><memballoon model='none'/><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices>
<qemu:commandline><qemu:arg value='-name'/><qemu:arg value='k,debug-threads=on'/></qemu:commandline></domain>`
	l.sh(t, "cat > /tmp/k.xml <<'X'\n"+xml+"\nX")
	defer l.numavisor(t, "delete", "k")
	l.must(t, "create", "--xml", "/tmp/k.xml", "--memory-binding", "strict")
	v := l.show(t, "k")
	v.vcpusIn(t, 1)
	v.memoryIn(t, 0.98)
	stored := l.sh(t, "virsh dumpxml k --inactive")
	for _, part := range []string{"<title>preserved</title>", "written &amp; owned by others",
		"<own:owner>someone</own:owner>",
		"<on_crash>preserve</on_crash>",
		"<backend model='random'>/dev/urandom</backend>", "<qemu:arg value='k,debug-threads=on'/>"} {
		if !strings.Contains(stored, part) {
			t.Errorf("lost: %s\n%s", part, stored)
		}
	}
	if !strings.Contains(stored, "<numatune>") || !strings.Contains(stored, "https://numavisor.dev/xmlns/1") {
		t.Errorf("no binding or no intent in it:\n%s", stored)
	}
}

func TestLabBindsHugePagesWithTheirPool(t *testing.T) {
	l := boot(t, "square4")
	before := l.pools(t)
	l.must(t, "create", "--name", "huge", "--vcpus", "2", "--memory", "64M", "--page-size", "2M", "--memory-binding",
		"strict", "--nodes", "1")
	l.must(t, "bind", "huge", "--nodes", "2")
	v := l.show(t, "huge")
	v.vcpusIn(t, 1)
	v.memoryIn(t, 0.98)
	if got := v.Truth.Nodes.String(); got != "2" {
		t.Errorf("on nodes %q, want 2", got)
	}
	l.must(t, "delete", "huge")
	if after := l.pools(t); after != before {
		t.Errorf("pools before %q, after deleting %q", before, after)
	}
}
