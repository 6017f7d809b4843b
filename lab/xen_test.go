package lab

import (
	"slices"
	"strings"
	"testing"
)

// The tools come with the libraries that this machine lacks; packages that the lab does not
// use, and those that Debian has under other hypervisors' names, stay out.
func TestChoosePackages(t *testing.T) {
	all := []string{"xen-system-amd64", "xen-hypervisor-4.17-amd64", "xen-hypervisor-common", "xen-utils-4.17",
		"xen-utils-common", "xenstore-utils", "libxencall1", "libyajl2", "libncurses6", "python3", "udev", "libc6"}
	installed := map[string][]debianPackage{"libyajl2": {{name: "libyajl2"}}}
	want := []string{"libncurses6", "libxencall1", "xen-hypervisor-4.17-amd64", "xen-utils-4.17", "xen-utils-common",
		"xenstore-utils"}
	if got := choosePackages(all, installed); !slices.Equal(got, want) {
		t.Errorf("packages are %v, want %v", got, want)
	}
}

func TestSupportsXen(t *testing.T) {
	shapes, err := Shapes()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		s = s.withDefaults()
		err := s.supportsXen()
		if can := s.HasKVM() && s.Memory() >= dom0Memory+512<<20; can != (err == nil) {
			t.Errorf("shape %s: %v", s.Name, err)
		}
	}
}

// Commas separate the parts of QEMU's -initrd, so those of file names are doubled.
func TestBootArguments(t *testing.T) {
	x := &xenFiles{hypervisor: "/cache/xen.elf"}
	args := x.bootArguments(kernel{image: "/a,b/vmlinuz"}, "/tmp/initrd", "console=hvc0 quiet")
	i := slices.Index(args, "-initrd")
	if want := "/a,,b/vmlinuz console=hvc0 quiet,/tmp/initrd"; args[i+1] != want {
		t.Errorf("modules are %q, want %q", args[i+1], want)
	}
	if !strings.Contains(args[slices.Index(args, "-append")+1], "dom0_mem=1024M,max:1024M") {
		t.Errorf("Xen's command line is %q", args)
	}
}

// Commands of a Xen lab run in dom0, which has fewer CPUs than the host.
func TestCommandCPUs(t *testing.T) {
	shape, err := FindShape("square4")
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Shape: shape.withDefaults()}
	if got := h.commandCPUs(); got != 8 {
		t.Errorf("commands of a lab with KVM run on %d CPUs, want 8", got)
	}
	if h.xen = (&xenFiles{}); h.commandCPUs() != dom0VCPUs {
		t.Errorf("commands of a Xen lab run on %d CPUs, want %d", h.commandCPUs(), dom0VCPUs)
	}
}
