package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/daemon"
)

// service is systemd's side of a daemon that it started as a unit of
// Type=notify (sd_notify(3)). The zero value is a daemon that something else
// started.
type service struct {
	socket   string        // NOTIFY_SOCKET; empty: systemd is not informed
	watchdog time.Duration // WatchdogSec of the unit; 0: none
}

// systemdService reads the unit's settings that systemd passes in the
// environment.
func systemdService() (service, error) {
	limit, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		return service{}, fmt.Errorf("WATCHDOG_USEC or WATCHDOG_PID in the environment: %w; unset them", err)
	}
	return service{os.Getenv("NOTIFY_SOCKET"), limit}, nil
}

// supervisor translates the daemon's states into systemd's. It reports Alive
// three times within the watchdog's limit: one report may be late.
func (s service) supervisor(log *slog.Logger) daemon.Supervisor {
	return daemon.Supervisor{AliveEvery: s.watchdog / 3, Report: func(now daemon.State) {
		switch now {
		case daemon.Ready:
			s.notify(log, sd.SdNotifyReady)
		case daemon.Alive:
			s.notify(log, sd.SdNotifyWatchdog)
		case daemon.Stopping:
			s.notify(log, sd.SdNotifyStopping)
		}
	}}
}

// notify sends one message. A lost message is no reason to end: systemd reacts
// to missing messages.
func (s service) notify(log *slog.Logger, lines ...string) {
	if s.socket == "" {
		return
	}
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		log.Warn("systemd was not informed", "message", lines[0], "error", err)
	}
}

// reloading reports that a reload begins, and when: Type=notify-reload requires
// both.
func reloading() []string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return []string{sd.SdNotifyReloading}
	}
	return []string{sd.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000)}
}
