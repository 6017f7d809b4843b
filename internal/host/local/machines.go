package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// DefaultImages is the folder of disks, kernels and logs of a fleet's VMs, unless the operator
// names others.
const DefaultImages = "/var/lib/libvirt/images"

// XenImages is DefaultImages on a Xen host.
const XenImages = "/var/lib/xen/images"

// Machines makes what VMs of a fleet need in addition to CPUs and memory.
type Machines struct {
	// Definitions writes definitions in the form of the hypervisor; nil: libvirt's.
	Definitions Definitions
	// Images are the folders in which files of VMs may be. Users of the fleet name paths of
	// the host; without a limit a VM could be given any file of it.
	Images []string
	// Volume returns the path of a volume of a libvirt pool.
	Volume func(ctx context.Context, pool, volume string) (string, error)
}

// Machines returns the makers of this host's VMs.
func (h *Host) Machines(images []string) *Machines {
	m := &Machines{Images: images, Volume: h.qemu.VolumePath}
	if h.Xen != nil {
		m.Definitions, m.Volume = XenDefinitions, noVolume
	}
	if len(images) == 0 {
		m.Images = []string{DefaultImages}
		if h.Xen != nil {
			m.Images = []string{XenImages}
		}
	}
	return m
}

// MachineTypes returns the types of machines that this host makes, if they are not the usual ones.
func (h *Host) MachineTypes() []string {
	if h.Xen == nil {
		return nil
	}
	return []string{inventory.MachineXen}
}

// Parts are the parts of a VM's machine as they are on this host.
type Parts struct {
	UUID, MAC string
	Disks     []Disk // with the seed of cloud-init
}

// Disk is a disk of a VM with its path on this host.
type Disk struct {
	Path, Format string
	ReadOnly     bool
}

// Definitions returns how to write the definition of a VM. It refuses a machine that the hypervisor does not make.
type Definitions func(v *fleet.VM, p Parts) (operate.Renderer, error)

// libvirtDefinitions writes domain XML.
func libvirtDefinitions(v *fleet.VM, p Parts) (operate.Renderer, error) {
	w := &v.Machine
	of := libvirt.Machine{Type: w.Type, Arch: w.Arch, CPU: w.CPU, UEFI: w.UEFI, Kernel: w.Kernel, Initrd: w.Initrd,
		Cmdline: w.Cmdline, Network: w.Network, SerialLog: w.SerialLog, UUID: p.UUID, MAC: p.MAC}
	for _, d := range p.Disks {
		of.Disks = append(of.Disks, libvirt.Disk(d))
	}
	return func(i guest.Intent) (operate.Rendered, error) {
		var r operate.Rendered
		text, err := libvirt.DomainXML(i, of)
		if err == nil {
			r.Definition, r.Cannot, err = libvirt.Definition(text)
		}
		return r, err
	}, of.Check(v.Spec)
}

// Prepare implements operate.Machines: it checks the paths, makes clones of base images and the
// seed of cloud-init.
func (m *Machines) Prepare(ctx context.Context, v *fleet.VM) (
	render operate.Renderer, undo func() error, err error,
) {
	w := &v.Machine
	var of Parts
	of.UUID, of.MAC = identity(v)
	var made []string
	undo = func() error {
		var errs []error
		for _, path := range made {
			errs = append(errs, os.Remove(path))
		}
		return errors.Join(errs...)
	}
	err = m.allow(w.Kernel, w.Initrd, w.SerialLog)
	for i := 0; err == nil && i < len(w.Disks); i++ {
		var d Disk
		var cloned bool
		if d, cloned, err = m.disk(ctx, v, &w.Disks[i]); err == nil {
			of.Disks = append(of.Disks, d)
		}
		if cloned {
			made = append(made, d.Path)
		}
	}
	if err == nil && w.CloudInit != "" {
		var seed string
		var written bool
		if seed, written, err = m.seed(ctx, v); written {
			made = append(made, seed)
		}
		if err == nil {
			of.Disks = append(of.Disks, Disk{Path: seed, Format: "raw", ReadOnly: true})
		}
	}
	if err == nil {
		define := m.Definitions
		if define == nil {
			define = libvirtDefinitions
		}
		render, err = define(v, of)
	}
	if err != nil {
		return nil, nil, errors.Join(err, undo())
	}
	return render, undo, nil
}

// disk returns a disk of a VM with its path on this host; cloned says that it was made now.
func (m *Machines) disk(ctx context.Context, v *fleet.VM, d *fleet.Disk) (
	disk Disk, cloned bool, err error,
) {
	disk = Disk{Path: d.Path, Format: d.Format, ReadOnly: d.ReadOnly}
	switch {
	case d.Pool != "" || d.Volume != "":
		if d.Path != "" || d.Base != "" || d.Pool == "" || d.Volume == "" {
			return disk, false, errors.New("a disk is a path, or a pool with a volume")
		}
		disk.Path, err = m.Volume(ctx, d.Pool, d.Volume)
		return disk, false, err
	case d.Base == "":
		return disk, false, m.allow(d.Path)
	}
	if err := m.allow(d.Path, d.Base); err != nil {
		return disk, false, err
	}
	disk.Format = cmp.Or(d.Format, "qcow2")
	cloned, err = clone(ctx, v, d, disk.Format)
	return disk, cloned, err
}

// clone makes a copy-on-write clone of a base image, unless the VM has it already. It never overwrites a file.
func clone(ctx context.Context, v *fleet.VM, d *fleet.Disk, format string) (cloned bool, err error) {
	if format != "qcow2" {
		return false, fmt.Errorf("disk %s: a clone of a base image has format qcow2, not %s", d.Path, format)
	}
	base, err := imageFormat(ctx, d.Base)
	if err != nil {
		return false, err
	}
	args := []string{"create", "-q", "-f", format, "-b", d.Base, "-F", base, "--"}
	cloned, err = makeFile(d.Path, diskOf, v, func(path string) error {
		of := append(slices.Clone(args), path)
		if d.Size > 0 {
			of = append(of, strconv.FormatUint(uint64(d.Size), 10))
		}
		return command(ctx, "qemu-img", of...)
	})
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("disk %s: it exists already, and may have the data of another VM; remove it, or name "+
			"another path", d.Path)
	}
	return cloned, err
}

// imageFormat returns the format of a base image by its name: probing its content would let the
// writer of a raw image choose which files of the host it refers to.
func imageFormat(_ context.Context, path string) (string, error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".qcow2":
		return "qcow2", nil
	case ".raw", ".img":
		return "raw", nil
	}
	return "", fmt.Errorf("base image %s: its name must end in .qcow2, .raw or .img", path)
}

// seedTools write ISO 9660 images, with the same flags.
var seedTools = []string{"genisoimage", "mkisofs", "xorrisofs"}

// seed writes the disk from which cloud-init reads its data at the first boot, unless the VM has it already.
func (m *Machines) seed(ctx context.Context, v *fleet.VM) (path string, written bool, err error) {
	i := slices.IndexFunc(seedTools, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	if i < 0 {
		return "", false, fmt.Errorf("cloud-init needs one of %s on the host; install one",
			strings.Join(seedTools, ", "))
	}
	folder, err := os.MkdirTemp("", "numavisor-seed-")
	if err != nil {
		return "", false, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	instance := v.Name + "-" + v.Created.UTC().Format("20060102150405")
	for name, text := range map[string]string{"user-data": v.Machine.CloudInit,
		"meta-data": fmt.Sprintf("instance-id: %q\nlocal-hostname: %q\n", instance, v.Name)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return "", false, err
		}
	}
	path = filepath.Join(m.Images[0], v.Name+"-seed.iso")
	if err := m.allow(path); err != nil {
		return "", false, err
	}
	if err := removeFormer(path, seedOf, v); err != nil {
		return "", false, err
	}
	written, err = makeFile(path, seedOf, v, func(path string) error {
		err := command(ctx, seedTools[i], "-quiet", "-o", path, "-V", "cidata", "-J", "-r", folder)
		return errors.Join(err, os.Chmod(path, 0o600)) // it may have passwords
	})
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("cloud-init needs the file %s, which exists and may be a disk of another VM; remove it", path)
	}
	return path, written, err
}

// MakeSeed makes the seed of cloud-init of a VM that arrives with copies of its disks, unless it is here already:
// libvirt copies no read-only disks. If the VM does not arrive, the seed remains until a VM of this name is made.
func (m *Machines) MakeSeed(ctx context.Context, v *fleet.VM) error {
	if v.Machine.CloudInit == "" {
		return nil
	}
	_, _, err := m.seed(ctx, v)
	return err
}

// command runs a program of the host.
func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%s is not installed on the host: %w", name, err)
	case err != nil:
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// allow refuses paths outside the folders of VMs' files, whatever symbolic links there are.
func (m *Machines) allow(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		real, err := realPath(path)
		if err != nil {
			return err
		}
		inside := func(folder string) bool {
			root, err := filepath.EvalSymlinks(folder)
			if err != nil {
				return false
			}
			below, err := filepath.Rel(root, real)
			return err == nil && filepath.IsLocal(below) && below != "."
		}
		if !slices.ContainsFunc(m.Images, inside) {
			return fmt.Errorf("path %s is not in a folder for files of VMs (%s); 'numavisor daemon --images' names "+
				"others", path, strings.Join(m.Images, ", "))
		}
	}
	return nil
}

// realPath resolves symbolic links of a path whose last part may not exist yet.
func realPath(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("path %q is relative; give an absolute one", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("path %s is a symbolic link to nothing", path)
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(folder, filepath.Base(path)), err
}
