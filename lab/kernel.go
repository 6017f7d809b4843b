package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Requirements are the Debian packages whose programs the lab uses.
func Requirements() []string {
	return []string{"qemu-system-x86", "libvirt-daemon-system", "libvirt-clients", "busybox-static", "e2fsprogs",
		"kmod", "numactl", "gcc", "libc6-dev"}
}

// program finds a program, or says which package has it.
func program(name string) (string, error) {
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("the lab needs the program %s: %w; apt-get install %s", name, err,
			strings.Join(Requirements(), " "))
	}
	return p, nil
}

// cacheFolder is the folder that holds the kernel and compiled parts between
// runs.
func cacheFolder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("the lab keeps its kernel in the user's cache folder: %w; set XDG_CACHE_HOME", err)
	}
	folder := filepath.Join(base, "numavisor", "lab")
	return folder, os.MkdirAll(folder, 0o755)
}

// kernel is an unpacked kernel package.
type kernel struct {
	image   string // vmlinuz
	modules string // .../lib/modules/VERSION/kernel
}

var kernelPackage = regexp.MustCompile(`linux-image-\d[\w.+-]*-amd64\b`)

// fetchKernel returns Debian's kernel from the cache; the first time it is
// downloaded and unpacked. The cloud kernel would not do: it lacks 9p.
func fetchKernel(ctx context.Context, progress func(string, ...any)) (kernel, error) {
	folder, err := fetchOnce(ctx, "kernel", func(fresh string) error {
		progress("fetching the kernel, once")
		name, err := kernelName(ctx)
		if err != nil {
			return err
		}
		return download(ctx, fresh, name)
	})
	if err != nil {
		return kernel{}, err
	}
	return openKernel(folder)
}

// fetchOnce returns a folder of the cache, and makes it if it does not exist: fetch fills a
// new folder, which then gets the name.
func fetchOnce(ctx context.Context, name string, fetch func(fresh string) error) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	target := filepath.Join(cache, name)
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	fresh, err := os.MkdirTemp(cache, name+".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if err := fetch(fresh); err != nil {
		return "", fmt.Errorf("fetching the lab's %s: %w", name, err)
	}
	return target, errors.Join(os.Chmod(fresh, 0o755), os.Rename(fresh, target))
}

// updateLists fetches the package lists, for a machine on which they are missing or were removed, or for other options
// of apt than the machine's own.
func updateLists(ctx context.Context, options ...string) error {
	update := exec.CommandContext(ctx, "apt-get", append(options, "update", "-q")...)
	if out, err := update.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get update: %w: %s", err, lastLine(out))
	}
	return nil
}

// download unpacks Debian packages into a folder, without installing them.
func download(ctx context.Context, folder string, names ...string) error {
	// apt drops its privileges for downloads, so the folder must be open to it.
	if err := os.Chmod(folder, 0o777); err != nil {
		return err
	}
	get := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, names...)...)
	get.Dir = folder
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %s: %w: %s", strings.Join(names, " "), err, lastLine(out))
	}
	return errors.Join(unpack(ctx, folder, folder), os.Chmod(folder, 0o755))
}

// unpack unpacks the Debian packages of one folder into another, and removes them.
func unpack(ctx context.Context, from, to string) error {
	debs, err := filepath.Glob(filepath.Join(from, "*.deb"))
	if err != nil || len(debs) == 0 {
		return errors.Join(err, fmt.Errorf("apt-get left no packages in %s", from))
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, to).CombinedOutput(); err != nil {
			return fmt.Errorf("unpacking %s: %w: %s", deb, err, lastLine(out))
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// kernelName is the package that linux-image-amd64 stands for.
func kernelName(ctx context.Context) (string, error) {
	look := func() (string, error) {
		out, err := exec.CommandContext(ctx, "apt-cache", "depends", "linux-image-amd64").Output()
		if name := kernelPackage.FindString(string(out)); name != "" {
			return name, nil
		}
		return "", errors.Join(errors.New("apt-cache names no kernel package behind linux-image-amd64"), err)
	}
	name, err := look()
	if err == nil {
		return name, nil
	}
	if failed := updateLists(ctx); failed != nil {
		return "", errors.Join(err, failed)
	}
	return look()
}

func openKernel(folder string) (kernel, error) {
	images, _ := filepath.Glob(filepath.Join(folder, "boot", "vmlinuz-*"))
	modules, _ := filepath.Glob(filepath.Join(folder, "lib", "modules", "*", "kernel"))
	if len(images) != 1 || len(modules) != 1 {
		return kernel{}, fmt.Errorf("%s holds no unpacked kernel", folder)
	}
	return kernel{images[0], modules[0]}, nil
}

// lockFile waits for a lock that ends with the process; unlock ends it sooner.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another process holds %s: %w", path, ctx.Err())
		case <-time.After(poll):
		}
	}
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
