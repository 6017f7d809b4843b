package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// rootPackages are the packages of a saved lab's root file system; their
// dependencies are added. Names that this machine lacks are omitted: they differ
// between releases.
var rootPackages = []string{
	"base-files", "base-passwd", "bash", "coreutils", "curl", "dash", "debianutils", "findutils", "gawk", "genisoimage",
	"grep",
	"hostname", "hwloc-nox",
	"iproute2", "kmod", "libc-bin", "libvirt-clients", "libvirt-daemon", "libvirt-daemon-config-network",
	"libvirt-daemon-driver-qemu",
	"libvirt-daemon-system", "login", "mawk", "mount", "ncurses-bin", "netbase", "numactl", "passwd", "procps",
	"psmisc",
	"qemu-system-common", "qemu-system-data", "qemu-system-x86", "qemu-utils", "seabios", "sed", "sysvinit-utils",
	"tar", "util-linux",
	"util-linux-extra",
}

// rootConfiguration is what the machine's own set-up adds to the packages' files.
var rootConfiguration = []string{
	"/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf.d", "/etc/libvirt", "/etc/nsswitch.conf",
	"/etc/passwd",
	"/etc/protocols", "/etc/services", "/var/lib/libvirt",
}

// rootFolders are empty ones that the lab's start mounts on or writes to.
var rootFolders = []string{"dev", "lab", "proc", "root", "run", "sys", "tmp", "var/cache/libvirt",
	"var/log/libvirt/qemu"}

// rootUnneeded are parts of packages that the lab never reads.
var rootUnneeded = []string{"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/lintian/",
	"/usr/share/bug/", "/usr/share/info/", "/usr/share/zoneinfo/", "/usr/share/icons/", "/lib/systemd/",
	"/usr/lib/systemd/", "/usr/lib/udev/", "/usr/share/perl/", "/usr/lib/x86_64-linux-gnu/perl/"}

const installedFormat = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Provides}\t${Pre-Depends}\t${Depends}\n"

// debianPackage is an installed package.
type debianPackage struct {
	name, version string
	provides      []string
	depends       []string // names, of alternatives all
}

// installedPackages returns the machine's packages by their names and by what they provide.
func installedPackages(ctx context.Context) (map[string][]debianPackage, error) {
	query, err := program("dpkg-query")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, query, "-W", "-f", installedFormat).Output()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's packages: %w", err)
	}
	return parsePackages(string(out)), nil
}

// parsePackages reads lines of installedFormat.
func parsePackages(list string) map[string][]debianPackage {
	found := map[string][]debianPackage{}
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 6 || !strings.HasPrefix(f[0], "ii") {
			continue
		}
		p := debianPackage{f[1], f[2], packageNames(f[3]), slices.Concat(packageNames(f[4]), packageNames(f[5]))}
		for _, name := range append([]string{p.name}, p.provides...) {
			found[name] = append(found[name], p)
		}
	}
	return found
}

// packageNames reads a list such as "libc6 (>= 2.34), mawk | gawk, perl:any".
func packageNames(list string) (names []string) {
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '|' }) {
		name, _, _ := strings.Cut(strings.TrimSpace(word), " ")
		if name, _, _ = strings.Cut(name, ":"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// closure returns the wanted packages and all that they depend on, by name.
func closure(installed map[string][]debianPackage, wanted []string) []debianPackage {
	taken := map[string]debianPackage{}
	for todo := slices.Clone(wanted); len(todo) > 0; {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range installed[name] {
			if _, done := taken[p.name]; !done {
				taken[p.name] = p
				todo = append(todo, p.depends...)
			}
		}
	}
	var all []debianPackage
	for _, p := range taken {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b debianPackage) int { return strings.Compare(a.name, b.name) })
	return all
}

// rootImage is the image of a small root file system.
type rootImage struct {
	path string
}

// makeRootImage returns the image from the cache, and makes it when this
// machine's packages have changed. Its caller holds the lock of saved labs.
func makeRootImage(ctx context.Context, cache string, progress func(string, ...any)) (rootImage, error) {
	installed, err := installedPackages(ctx)
	if err != nil {
		return rootImage{}, err
	}
	packages := closure(installed, rootPackages)
	sum := sha256.New()
	fmt.Fprintln(sum, rootPackages, rootConfiguration, rootFolders, rootUnneeded)
	for _, p := range packages {
		fmt.Fprintln(sum, p.name, p.version)
	}
	key := hex.EncodeToString(sum.Sum(nil)[:6])
	image := rootImage{filepath.Join(cache, "root-"+key+".img")}
	if _, err := os.Stat(image.path); err == nil {
		return image, nil
	}
	progress("making a root file system of %d packages, once", len(packages))
	if err := buildRootImage(ctx, packages, image.path); err != nil {
		return rootImage{}, fmt.Errorf("making the lab's root file system: %w", err)
	}
	return image, nil
}

func buildRootImage(ctx context.Context, packages []debianPackage, target string) error {
	format, err := program("mke2fs")
	if err != nil {
		return err
	}
	files, err := packageFiles(ctx, packages)
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp(filepath.Dir(target), "root.new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	tree := filepath.Join(root, "tree")
	for _, folder := range rootFolders {
		if err := os.MkdirAll(filepath.Join(tree, folder), 0o755); err != nil {
			return err
		}
	}
	if err := copyTree(ctx, files, tree); err != nil {
		return err
	}
	size, err := treeSize(tree)
	if err != nil {
		return err
	}
	image := filepath.Join(root, "image")
	mkfs := exec.CommandContext(ctx, format, "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, image,
		fmt.Sprintf("%dM", size>>20*5/4+64))
	if out, err := mkfs.CombinedOutput(); err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, lastLine(out))
	}
	return os.Rename(image, target)
}

// packageFiles lists the files of packages, the links that update-alternatives
// made to them, and the machine's configuration. Folders are named by their own path.
func packageFiles(ctx context.Context, packages []debianPackage) ([]string, error) {
	args := []string{"-L"}
	for _, p := range packages {
		args = append(args, p.name)
	}
	out, err := exec.CommandContext(ctx, "dpkg", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages' files: %w", err)
	}
	listed := strings.Split(string(out), "\n")
	for _, folder := range []string{"/usr/bin", "/usr/sbin"} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if to, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil &&
				strings.HasPrefix(to, "/etc/alternatives/") {
				listed = append(listed, filepath.Join(folder, e.Name()))
			}
		}
	}
	for _, top := range rootConfiguration {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			listed = append(listed, path)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return physicalPaths(listed), nil
}

// physicalPaths drops what is not there or not needed, and names each file by
// the path that no link leads through: packages name /lib, which is /usr/lib.
// The links of the top folder come along.
func physicalPaths(listed []string) []string {
	var files []string
	folders := map[string]string{}
	for _, path := range listed {
		path = strings.TrimSpace(path)
		if !strings.HasPrefix(path, "/") || path == "/." {
			continue
		}
		info, err := os.Lstat(path)
		if err != nil ||
			slices.ContainsFunc(rootUnneeded, func(p string) bool { return strings.HasPrefix(path+"/", p) }) {
			continue
		}
		if mode := info.Mode(); !mode.IsRegular() && !mode.IsDir() && mode&fs.ModeSymlink == 0 {
			continue
		}
		parent := filepath.Dir(path)
		if _, known := folders[parent]; !known {
			if folders[parent], err = filepath.EvalSymlinks(parent); err != nil {
				continue
			}
		}
		files = append(files, filepath.Join(folders[parent], filepath.Base(path)))
	}
	files = append(files, "/bin", "/sbin", "/lib", "/lib64")
	slices.Sort(files)
	return slices.Compact(files)
}

// copyTree copies named files and folders, without what is in the folders.
func copyTree(ctx context.Context, files []string, tree string) error {
	var list bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&list, "%s\x00", strings.TrimPrefix(f, "/"))
	}
	script := "tar -C / -c --no-recursion --null --ignore-failed-read --warning=no-failed-read -T - | tar -C " + quote(
		tree) + " -x"
	pack := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script)
	pack.Stdin = &list
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("copying %d files: %w: %s", len(files), err, lastLine(out))
	}
	return nil
}

// treeSize is the sum of the sizes of all files, each in whole blocks.
func treeSize(tree string) (size int64, err error) {
	const block = 4096
	err = filepath.WalkDir(tree, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += (info.Size() + 2*block - 1) / block * block
		return nil
	})
	return size, err
}
