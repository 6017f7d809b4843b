package lab

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Hypervisor is what runs the VMs of a lab.
type Hypervisor string

// The hypervisors of a lab. The zero value is KVM.
const (
	KVM Hypervisor = "kvm"
	Xen Hypervisor = "xen"
)

// xenFiles are the parts of Xen in the cache folder. The tools are not installed on
// this machine: a lab unpacks them over its root.
type xenFiles struct {
	hypervisor string // the hypervisor as an ELF file, which QEMU loads by the multiboot protocol
	tools      string // tar archive of xl, xenstored, xenconsoled and their libraries
}

const (
	// dom0Memory is what the first domain of Xen gets: it holds the lab's programs and the files
	// that commands write. The rest of the memory is free for VMs.
	dom0Memory = 1 * topology.GiB
	// dom0VCPUs bounds the vCPUs of the first domain, so that they do not fill the host.
	dom0VCPUs = 2
)

// supportsXen returns an error if no Xen lab of this shape can be booted.
func (s Shape) supportsXen() error {
	switch {
	case !s.HasKVM():
		return fmt.Errorf("shape %s: Xen needs an emulated AMD CPU, which QEMU has without SMT threads and with one "+
			"L3 for each node; choose another shape", s.Name)
	case s.Memory() < dom0Memory+512*topology.MiB:
		return fmt.Errorf("shape %s: its %v of memory are too little for Xen, whose dom0 gets %v; choose a larger shape",
			s.Name, s.Memory(), dom0Memory)
	}
	return nil
}

var xenPackage = regexp.MustCompile(`^<?(lib)?xen[a-z0-9.+-]*$`)

// fetchXen returns Debian's Xen from the cache; the first time it is downloaded and unpacked.
func fetchXen(ctx context.Context, progress func(string, ...any)) (xenFiles, error) {
	folder, err := fetchOnce(ctx, "xen", func(fresh string) error {
		progress("fetching Xen, once")
		return downloadXen(ctx, fresh)
	})
	if err != nil {
		return xenFiles{}, err
	}
	x := xenFiles{filepath.Join(folder, "xen.elf"), filepath.Join(folder, "tools.tar")}
	_, err = os.Stat(x.tools)
	return x, err
}

func downloadXen(ctx context.Context, folder string) error {
	names, err := xenPackages(ctx)
	if err != nil {
		return err
	}
	tree := filepath.Join(folder, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if err := download(ctx, tree, names...); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(tree, "boot", "xen-*.gz"))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("the packages of Xen have %d hypervisors; one is wanted", len(images)))
	}
	if err := gunzip(images[0], filepath.Join(folder, "xen.elf")); err != nil {
		return err
	}
	// Neither the hypervisor nor the documents are read inside the lab.
	for _, part := range []string{"boot", "usr/share/doc", "usr/share/man", "usr/lib/debug"} {
		if err := os.RemoveAll(filepath.Join(tree, part)); err != nil {
			return err
		}
	}
	tar := exec.CommandContext(ctx, "tar", "-C", tree, "--owner=0", "--group=0", "-cf",
		filepath.Join(folder, "tools.tar"), ".")
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("packing Xen's tools: %w: %s", err, lastLine(out))
	}
	return os.RemoveAll(tree)
}

// xenPackages are the packages of Xen's hypervisor and tools with the libraries that they need
// and that this machine lacks. Others, such as udev, this machine has or the lab does not use.
func xenPackages(ctx context.Context) ([]string, error) {
	depends := func(names ...string) ([]string, error) {
		args := append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
			"--no-breaks", "--no-replaces", "--no-enhances"}, names...)
		out, err := exec.CommandContext(ctx, "apt-cache", args...).Output()
		if err != nil {
			return nil, fmt.Errorf("apt-cache depends %s: %w", names[0], err)
		}
		var found []string
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimRight(line, "\n"); line != "" && !strings.ContainsAny(line, " <>") {
				found = append(found, line)
			}
		}
		return found, nil
	}
	all, err := depends("xen-system-amd64")
	if err != nil || len(all) == 0 {
		if err := updateLists(ctx); err != nil {
			return nil, err
		}
		if all, err = depends("xen-system-amd64"); err != nil {
			return nil, err
		}
	}
	installed, err := installedPackages(ctx)
	if err != nil {
		return nil, err
	}
	return choosePackages(all, installed), nil
}

// choosePackages picks Xen's own packages, and libraries that are not installed.
func choosePackages(all []string, installed map[string][]debianPackage) []string {
	var names []string
	for _, name := range all {
		library := (strings.HasPrefix(name, "libyajl") || strings.HasPrefix(name, "libncurses") ||
			strings.HasPrefix(name, "libtinfo")) && len(installed[name]) == 0
		own := xenPackage.MatchString(name) && name != "xen-system-amd64" && name != "xen-hypervisor-common"
		if own || library {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func gunzip(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	unzip, err := gzip.NewReader(in)
	if err != nil {
		return fmt.Errorf("unpacking %s: %w", from, err)
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, unzip)
	return errors.Join(err, out.Close())
}

// bootArguments are QEMU's arguments that load Xen, the kernel of its first domain, and that
// domain's initial file system.
func (x *xenFiles) bootArguments(k kernel, initrd, commandLine string) []string {
	modules := fmt.Sprintf("%s %s,%s", optionValue(k.image), commandLine, optionValue(initrd))
	return []string{"-kernel", x.hypervisor, "-initrd", modules, "-append", fmt.Sprintf(
		"console=com1 loglvl=warning dom0_mem=%dM,max:%dM dom0_max_vcpus=%d noreboot conring_size=1M",
		dom0Memory>>20, dom0Memory>>20, dom0VCPUs)}
}

// deviceModel is where Debian's Xen looks for the QEMU that emulates the devices of a VM with firmware (HVM).
const deviceModel = "usr/libexec/xen-qemu-system-i386"

// deviceModelData are the files without which it does not start a VM that boots a kernel directly.
func deviceModelData() []string {
	return []string{"usr/share/qemu/linuxboot.bin", "usr/share/qemu/linuxboot_dma.bin", "usr/share/qemu/keymaps/en-us"}
}

// AddDeviceModel makes a Xen lab able to run VMs with firmware (HVM). The first lab that does downloads Debian's QEMU
// for Xen, without installing it on this machine; the libraries and files that it needs are those of this machine's own QEMU.
func (h *Host) AddDeviceModel(ctx context.Context) error {
	folder, err := fetchOnce(ctx, "xen-device-model", func(fresh string) error {
		return download(ctx, fresh, "qemu-system-xen")
	})
	if err != nil {
		return err
	}
	// Not links: QEMU looks for its files relative to where the program really is.
	script := []string{"set -e"}
	add := func(from, file string) error {
		name := filepath.Base(file)
		script = append(script, fmt.Sprintf("mkdir -p /%[1]s; touch /%[3]s; mount --bind /lab/files/%[2]s /%[3]s",
			filepath.Dir(file), name, file))
		return copyFile(filepath.Join(from, file), h.share("files", name))
	}
	if err := add(folder, deviceModel); err != nil {
		return err
	}
	for _, file := range deviceModelData() {
		if err := add("/", file); err != nil {
			return fmt.Errorf("the lab's device model needs the package qemu-system-data: %w", err)
		}
	}
	script = append(script, `! ldd /`+deviceModel+` | grep "not found"`)
	var out bytes.Buffer
	status, err := h.Run(ctx, []string{"sh", "-c", strings.Join(script, "\n")}, &out, &out)
	if err = failed(status, out.Bytes(), err); err != nil {
		return fmt.Errorf("the lab's device model: %w", err)
	}
	return nil
}
