package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Where the lab's KVM guests find their kernel and initial file system, inside the lab.
const (
	GuestKernel = "/lab/vmlinuz"
	GuestInitrd = "/lab/files/guest.initrd"
	// GuestCommandLine keeps a guest's boot short and quiet.
	GuestCommandLine = "console=ttyS0 quiet panic=-1 transparent_hugepage=never tsc=reliable"
	// GuestReady begins the line that a guest prints when its memory is filled.
	GuestReady = "NUMAVISOR-GUEST READY"
)

//go:embed guest/guest.c
var guestSource []byte

// AddGuest puts the KVM guest's initial file system into the lab's share: a
// small program that fills the guest's memory and measures its bandwidth when
// asked to over the serial console (guest/guest.c says how).
func (h *Host) AddGuest(ctx context.Context) error {
	program, err := compileGuest(ctx)
	if err != nil {
		return fmt.Errorf("the lab's guest: %w", err)
	}
	init, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	// Made beside its place: tools inside never see half of it.
	fresh := filepath.Join(h.folder, "guest.initrd")
	if err := packInitramfs(ctx, init, nil, []string{"proc", "sys", "dev"}, fresh); err != nil {
		return fmt.Errorf("the lab's guest: %w", err)
	}
	return os.Rename(fresh, h.share("files", "guest.initrd"))
}

func compileGuest(ctx context.Context) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(guestSource)
	target := filepath.Join(cache, "guest-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, compileC(ctx, guestSource, target, "-static")
}

// compileC compiles one C source into the cache, in one step as others see it.
func compileC(ctx context.Context, source []byte, target string, flags ...string) error {
	gcc, err := program("gcc")
	if err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(target), "compiled-")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name())
	fresh.Close()
	compile := exec.CommandContext(ctx, gcc, append(flags, "-O2", "-x", "c", "-", "-o", fresh.Name())...)
	compile.Stdin = strings.NewReader(string(source))
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s: %w: %s", filepath.Base(target), err, lastLine(out))
	}
	if err := os.Chmod(fresh.Name(), 0o755); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), target)
}
