package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The program is a unit of Type=notify with a watchdog: what systemd receives
// from its start to its end, with a reload in between.
func TestDaemon_ReportsItsStateToSystemd(t *testing.T) {
	folder := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(folder, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	next := func() string {
		t.Helper()
		message := make([]byte, 4096)
		if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := socket.Read(message)
		if err != nil {
			t.Fatalf("systemd received nothing: %v", err)
		}
		return string(message[:n])
	}
	// wait returns the first message that is not a watchdog report.
	wait := func() string {
		t.Helper()
		for {
			if m := next(); m != "WATCHDOG=1" {
				return m
			}
		}
	}

	d := exec.Command("numavisor", "daemon", "--socket", filepath.Join(folder, "socket"), "--state",
		filepath.Join(folder, "state"), "--records", filepath.Join(folder, "records"))
	d.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(folder, "notify"), "WATCHDOG_USEC=300000",
		"LIBVIRT_DEFAULT_URI=qemu+unix:///system?socket="+folder+"/no-libvirtd")
	var log bytes.Buffer
	d.Stdout, d.Stderr = &log, &log
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			_ = d.Process.Kill()
			_ = d.Wait()
			t.Logf("the daemon's log:\n%s", &log)
		}
	}()
	if m := wait(); m != "READY=1" {
		t.Fatalf("the first message is %q", m)
	}
	for range 3 {
		if m := next(); m != "WATCHDOG=1" {
			t.Fatalf("after its start the daemon says %q", m)
		}
	}
	if err := d.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if m := wait(); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`).MatchString(m) {
		t.Fatalf("at SIGHUP it says %q", m)
	}
	if m := wait(); m != "READY=1" {
		t.Fatalf("after reading its policy it says %q", m)
	}
	if err := d.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if m := wait(); m != "STOPPING=1" {
		t.Fatalf("at SIGTERM it says %q", m)
	}
	if err := d.Wait(); err != nil || strings.Contains(log.String(), "systemd was not informed") {
		t.Fatalf("it ends by %v", err)
	}
}

// A daemon that systemd did not start reports to none; one whose environment is damaged says so.
func TestSystemdService_FollowsTheEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	if s, err := systemdService(); err != nil || s != (service{}) {
		t.Errorf("without systemd: %+v, %v", s, err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := systemdService(); err == nil || !strings.Contains(err.Error(), "WATCHDOG_USEC") {
		t.Errorf("of WATCHDOG_USEC=soon: %v", err)
	}
}
