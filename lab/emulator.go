package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// emulatorRelease is the release of Debian whose backports have the QEMU that emulates labs. It is unpacked with its
// libraries, and so runs on other releases.
const emulatorRelease = "trixie"

// findEmulator returns the QEMU that emulates labs: the machine's own or, if that may run overwritten code (staleCode)
// or lose interrupts (lostInterrupts), a later one from Debian's backports. It goes into the cache, and is not
// installed: the VMs in a lab still run in the machine's own. Without a later one the lab uses the machine's own, and
// reports that. Labs with Xen always do: in QEMU 10.0 and 11.1 a VM of Xen ends as soon as it starts.
func findEmulator(ctx context.Context, hypervisor Hypervisor, progress func(string, ...any)) (string, error) {
	own, err := program("qemu-system-x86_64")
	if err != nil || hypervisor == Xen {
		return own, err
	}
	version, err := askQEMUVersion(ctx, own)
	if err != nil || !version.staleCode() && !version.lostInterrupts() {
		return own, err
	}
	later, err := fetchEmulator(ctx, progress)
	if err == nil || ctx.Err() != nil {
		return later, err
	}
	progress("the lab runs in %s %d.%d, which sometimes crashes or locks up under load; a later QEMU is not available: %v",
		own, version.major, version.minor, err)
	return own, nil
}

const (
	// unavailable is a file in place of a QEMU that could not be downloaded, with the reason.
	unavailable = "unavailable"
	// retryEmulator is how old that file is when the next lab tries again.
	retryEmulator = 24 * time.Hour
)

// fetchEmulator returns the backported QEMU from the cache; the first time it is downloaded and unpacked. A download
// that failed is not repeated for a day: without a network it may take a minute.
func fetchEmulator(ctx context.Context, progress func(string, ...any)) (string, error) {
	folder, err := fetchOnce(ctx, "qemu-"+emulatorRelease, func(fresh string) error {
		progress("fetching a later QEMU, once")
		err := downloadEmulator(ctx, fresh)
		if err == nil || ctx.Err() != nil {
			return err
		}
		return os.WriteFile(filepath.Join(fresh, unavailable), []byte(err.Error()), 0o644)
	})
	if err != nil {
		return "", err
	}
	if why := whyUnavailable(folder, time.Now()); why != nil {
		return "", why
	}
	return emulatorIn(folder), nil
}

// whyUnavailable returns why a folder of the cache has no QEMU; nil if it has one. It removes a reason that is old.
func whyUnavailable(folder string, now time.Time) error {
	file := filepath.Join(folder, unavailable)
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	why, unread := os.ReadFile(file)
	if err = errors.Join(err, unread); err != nil {
		return err
	}
	if now.Sub(info.ModTime()) > retryEmulator {
		err = os.RemoveAll(folder)
	}
	return errors.Join(errors.New(string(why)), err)
}

// emulatorIn returns the program that starts the QEMU of a folder.
func emulatorIn(folder string) string {
	return filepath.Join(folder, "usr", "bin", "lab-qemu")
}

// startEmulator starts QEMU with the libraries and modules of its own folder, by their loader: its paths are those of
// an installed QEMU.
const startEmulator = `#!/bin/sh
usr=$(dirname "$(dirname "$0")")
lib=$usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR=$lib/qemu
exec "$lib/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$lib" "$usr/bin/qemu-system-x86_64" "$@"
`

func downloadEmulator(ctx context.Context, folder string) error {
	apt, err := backports(ctx, filepath.Join(folder, "apt"))
	if err != nil {
		return err
	}
	if err := updateLists(ctx, apt...); err != nil {
		return err
	}
	get := exec.CommandContext(ctx, "apt-get", append(apt, "install", "-q", "-y", "--download-only",
		"--no-install-recommends", "--target-release", emulatorRelease+"-backports", "qemu-system-x86")...)
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get install --download-only qemu-system-x86: %w: %s", err, lastLine(out))
	}
	if err := unpack(ctx, filepath.Join(folder, "apt", "cache", "archives"), folder); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(folder, "apt")); err != nil {
		return err
	}
	if err := os.WriteFile(emulatorIn(folder), []byte(startEmulator), 0o755); err != nil {
		return err
	}
	version, err := askQEMUVersion(ctx, emulatorIn(folder)) // it also shows that QEMU has all its libraries
	if err == nil && version.lostInterrupts() {
		err = fmt.Errorf("the backports have QEMU %d.%d only", version.major, version.minor)
	}
	return err
}

// backports makes a folder for apt that knows only a release of Debian and its backports, from where the machine gets
// its own release, and no installed package. It returns apt's options for that.
func backports(ctx context.Context, folder string) (options []string, err error) {
	release, err := releaseOf("/etc/os-release")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)",
		"Created-By: Packages", "Component: main").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get indextargets: %w", err)
	}
	address, err := archiveOf(release, string(out))
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(folder, part), 0o755); err != nil {
			return nil, err
		}
	}
	list, installed := filepath.Join(folder, "sources.list"), filepath.Join(folder, "status")
	var text string
	for _, suite := range []string{emulatorRelease, emulatorRelease + "-backports"} {
		text += fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debianKeys, address, suite)
	}
	err = errors.Join(os.WriteFile(list, []byte(text), 0o644), os.WriteFile(installed, nil, 0o644))
	return []string{"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::Etc::preferences=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null",
		"-o", "Dir::State::status=" + installed,
		"-o", "Dir::State::lists=" + filepath.Join(folder, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(folder, "cache"),
		"-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30",
		"-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=true"}, err // no lock of the machine's packages
}

// debianKeys are the keys that sign Debian's archive, of package debian-archive-keyring.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// releaseOf returns the codename of the release of Debian that a file describes; see os-release(5).
func releaseOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	fields := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		fields[name] = strings.Trim(value, `"'`)
	}
	if fields["ID"] != "debian" || fields["VERSION_CODENAME"] == "" {
		return "", fmt.Errorf("%s: not a release of Debian, which would have backports", path)
	}
	return fields["VERSION_CODENAME"], nil
}

// archiveOf returns the address of the archive from which a machine gets a release, by lines "RELEASE ADDRESS".
func archiveOf(release, targets string) (string, error) {
	lines := strings.Split(targets, "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, release+" ") })
	if at < 0 {
		return "", fmt.Errorf("apt knows no archive of %s", release)
	}
	_, address, _ := strings.Cut(lines[at], " ")
	return strings.TrimSpace(address), nil
}

// firmwareArguments are the folders in which QEMU finds its firmware, if it is not installed in its own place: its
// paths are absolute.
func firmwareArguments(qemu string) (args []string) {
	for _, name := range []string{"qemu", "seabios"} {
		folder := filepath.Join(filepath.Dir(qemu), "..", "share", name)
		if info, err := os.Stat(folder); err == nil && info.IsDir() {
			args = append(args, "-L", folder)
		}
	}
	return args
}
