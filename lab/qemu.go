package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// machine names the sources of a lab's root, start and memory.
type machine struct {
	root     string // image of the root file system; empty: this machine's own, over 9p
	initrd   string
	memory   string // folder with the nodes' memory as files; empty: none
	incoming bool   // it resumes from a saved lab, whose memory stays unchanged
}

// Descriptors that QEMU inherits: see start.
const (
	agentDescriptor   = 3
	monitorDescriptor = 4
)

// arguments returns QEMU's command line and environment for the shape.
func (h *Host) arguments(ctx context.Context, o Options, k kernel, m machine) (args, env []string, err error) {
	args = append(h.machineArguments(o.Shape, k, m), firmwareArguments(o.QEMU)...)
	if o.Share != "" {
		args = append(args, "-fsdev", "local,id=s,security_model=none,multidevs=remap,path="+optionValue(o.Share),
			"-device", "virtio-9p-pci,fsdev=s,mount_tag=share")
	}
	scope, preload, err := h.loadScope(ctx, o)
	if err != nil {
		return nil, nil, fmt.Errorf("the lab's access counter: %w", err)
	}
	env, err = environment(ctx, o.Shape, preload)
	return append(args, scope...), env, err
}

// machineArguments are those that a saved lab and one restored from it share.
func (h *Host) machineArguments(s Shape, k kernel, m machine) []string {
	args := []string{"-accel", "tcg,thread=multi", "-cpu", h.cpuModel(s), "-nographic", "-no-reboot", "-nodefaults",
		"-serial", "stdio", "-machine", fmt.Sprintf("pc,max-ram-below-4g=%d", uint64(lowMemory)), "-m",
		fmt.Sprintf("%dM", s.Memory()>>20)}
	args = append(args, processors(s)...)
	args = append(args, nodes(s, m)...)
	root := "rootfs"
	if m.root != "" {
		root = "image"
		args = append(args, "-drive", "if=none,id=r,format=raw,readonly=on,file="+optionValue(m.root), "-device",
			"virtio-blk-pci,drive=r")
	} else {
		args = append(args, "-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap", "-device",
			"virtio-9p-pci,fsdev=r,mount_tag=rootfs")
	}
	args = append(args, "-fsdev", "local,id=l,security_model=none,path="+optionValue(h.share()), "-device",
		"virtio-9p-pci,fsdev=l,mount_tag=lab", "-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentDescriptor),
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent", "-chardev",
		fmt.Sprintf("socket,id=monitor,fd=%d", monitorDescriptor), "-mon", "chardev=monitor,mode=control")
	// no_timer_check: the kernel counts timer interrupts while it boots, and panics if the emulator did not run then
	// (timer_irq_works in arch/x86/kernel/apic/io_apic.c). Under KVM it leaves that check out by itself.
	commandLine := "quiet panic=-1 cgroup_no_v1=all tsc=reliable no_timer_check lab.root=" + root
	if h.xen != nil {
		args = append(args, h.xen.bootArguments(k, m.initrd, "console=hvc0 "+commandLine)...)
	} else {
		args = append(args, "-kernel", k.image, "-initrd", m.initrd, "-append", "console=ttyS0 "+commandLine)
	}
	if m.incoming {
		args = append(args, "-incoming", "defer")
	}
	return args
}

// cpuModel is an AMD model where possible: then the lab has KVM, which TCG
// emulates as SVM. QEMU reports threads and dies of an AMD CPU through a
// feature that TCG lacks (TOPOEXT), so shapes with them have Intel CPUs, and no
// KVM. They have no CPUID leaf 0x1F, which QEMU 11.1 ends at (an assertion in encode_topo_cpuid1f, target/i386/cpu.c)
// when the firmware asks for it. Xen's first domain dies of the features of model max.
func (h *Host) cpuModel(s Shape) string {
	switch {
	case h.xen != nil:
		return "qemu64,+svm,+npt"
	case s.HasKVM():
		return "max"
	}
	return "max,vendor=GenuineIntel,level=0x1e"
}

// processors shows sockets as nodes where nodes are equal; unequal ones need a
// socket per core, since QEMU knows sockets of one size only.
func processors(s Shape) []string {
	sockets, dies, cores := s.CPUs()/s.Threads, 1, 1
	if s.equalNodes() && s.Nodes[0].CPUs > 0 {
		sockets, dies = len(s.Nodes), s.L3PerNode
		cores = s.Nodes[0].CPUs / (s.Threads * dies)
	}
	return []string{"-smp",
		fmt.Sprintf("%d,sockets=%d,dies=%d,cores=%d,threads=%d", s.CPUs(), sockets, dies, cores, s.Threads)}
}

func nodes(s Shape, m machine) []string {
	var args []string
	cpu := 0
	for i, n := range s.Nodes {
		node := fmt.Sprintf("node,nodeid=%d", i)
		if n.CPUs > 0 {
			node += fmt.Sprintf(",cpus=%d-%d", cpu, cpu+n.CPUs-1)
			cpu += n.CPUs
		}
		if n.Memory > 0 {
			args = append(args, "-object", backend(fmt.Sprintf("m%d", i), n.Memory, m))
			node += fmt.Sprintf(",memdev=m%d", i)
		}
		args = append(args, "-numa", node)
	}
	for i, row := range s.Distances {
		for j, d := range row {
			if i != j {
				args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, d))
			}
		}
	}
	return args
}

// backend is a node's memory: a file that is written while a lab is saved, and
// only read, copy on write, by those restored from it.
func backend(id string, size topology.Bytes, m machine) string {
	if m.memory == "" {
		return fmt.Sprintf("memory-backend-ram,id=%s,size=%dM", id, size>>20)
	}
	share := "on"
	if m.incoming {
		share = "off"
	}
	return fmt.Sprintf("memory-backend-file,id=%s,size=%dM,share=%s,mem-path=%s", id, size>>20, share,
		optionValue(filepath.Join(m.memory, id)))
}

var versionText = regexp.MustCompile(`version (\d+)\.(\d+)`)

// askQEMUVersion asks an emulator.
func askQEMUVersion(ctx context.Context, qemu string) (qemuVersion, error) {
	out, err := exec.CommandContext(ctx, qemu, "--version").Output()
	if err != nil {
		return qemuVersion{}, fmt.Errorf("%s --version: %w", qemu, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return qemuVersion{}, fmt.Errorf("%s --version: no version in %q", qemu, out)
	}
	major, majorErr := strconv.Atoi(string(m[1]))
	minor, minorErr := strconv.Atoi(string(m[2]))
	return qemuVersion{major, minor}, errors.Join(majorErr, minorErr)
}

// optionValue escapes the commas of a value for QEMU's options.
func optionValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
