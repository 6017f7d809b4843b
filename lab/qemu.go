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
)

// arguments returns QEMU's command line for the shape, and what it needs in its environment.
func (h *Host) arguments(ctx context.Context, o Options, k kernel) (args, env []string, err error) {
	s := o.Shape
	args = []string{"-accel", "tcg,thread=multi", "-cpu", cpuModel(s), "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio",
		"-machine", fmt.Sprintf("pc,max-ram-below-4g=%d", uint64(lowMemory)), "-m", fmt.Sprintf("%dM", s.Memory()>>20)}
	args = append(args, processors(s)...)
	args = append(args, nodes(s)...)
	args = append(args,
		"-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-9p-pci,fsdev=r,mount_tag=rootfs",
		"-fsdev", "local,id=l,security_model=none,path="+optionValue(h.share()), "-device", "virtio-9p-pci,fsdev=l,mount_tag=lab",
		"-kernel", k.image, "-initrd", filepath.Join(h.folder, "initrd"),
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all tsc=reliable")
	if o.Share != "" {
		args = append(args, "-fsdev", "local,id=s,security_model=none,multidevs=remap,path="+optionValue(o.Share), "-device", "virtio-9p-pci,fsdev=s,mount_tag=share")
	}
	scope, env, err := h.loadScope(ctx, o)
	if err != nil {
		return nil, nil, fmt.Errorf("the lab's access counter: %w", err)
	}
	return append(args, scope...), env, nil
}

// cpuModel is AMD's where it can be: then the lab has KVM, which TCG emulates as
// SVM. Threads and dies of an AMD CPU are told by a feature that TCG lacks
// (TOPOEXT), so such shapes are Intel CPUs, and have no KVM.
func cpuModel(s Shape) string {
	if s.HasKVM() {
		return "max"
	}
	return "max,vendor=GenuineIntel"
}

// processors shows sockets as nodes where nodes are equal; unequal ones need a
// socket per core, since QEMU knows sockets of one size only.
func processors(s Shape) []string {
	sockets, dies, cores := s.CPUs()/s.Threads, 1, 1
	if s.equalNodes() && s.Nodes[0].CPUs > 0 {
		sockets, dies = len(s.Nodes), s.L3PerNode
		cores = s.Nodes[0].CPUs / (s.Threads * dies)
	}
	return []string{"-smp", fmt.Sprintf("%d,sockets=%d,dies=%d,cores=%d,threads=%d", s.CPUs(), sockets, dies, cores, s.Threads)}
}

func nodes(s Shape) []string {
	var args []string
	cpu := 0
	for i, n := range s.Nodes {
		node := fmt.Sprintf("node,nodeid=%d", i)
		if n.CPUs > 0 {
			node += fmt.Sprintf(",cpus=%d-%d", cpu, cpu+n.CPUs-1)
			cpu += n.CPUs
		}
		if n.Memory > 0 {
			args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", i, n.Memory>>20))
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

// optionValue writes a value so that QEMU's options take its commas as they are.
func optionValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
