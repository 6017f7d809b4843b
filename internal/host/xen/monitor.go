package xen

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// program is a running program named xl.
type program struct {
	args []string
	// log is the end of the file to which it writes, as xl does once it runs in the background; empty: to none.
	log string
}

// programs returns the running programs named xl.
func (d *Driver) programs() ([]program, error) {
	if d.listPrograms != nil {
		return d.listPrograms()
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var all []program
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		if filepath.Base(args[0]) == "xl" {
			all = append(all, program{args, logOf(filepath.Dir(file))})
		}
	}
	return all, nil
}

// logBytes is how much of a log is read: xl writes one line for each restart of its VM.
const logBytes = 4096

// logOf returns the end of the file that is a process' standard output, and nothing if it is no regular file.
func logOf(process string) string {
	output := filepath.Join(process, "fd", "1")
	if info, err := os.Stat(output); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(output)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > logBytes {
		if _, err := f.Seek(-logBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, logBytes))
	if err != nil {
		return ""
	}
	return string(bytes.ToValidUTF8(text, nil))
}

// watchedLine is what xl writes once it has made a domain and waits for its end (xl_vmcontrol.c, create_domain).
var watchedLine = regexp.MustCompile(`(?m)^Waiting for domain (.+) \(domid (\d{1,9})\) to die `)

// watches returns the VM that the program watches, and its domain, as last made. xl watches each VM that it has
// created, and makes it again when it reboots.
func (p *program) watches() (name string, domain int, ok bool) {
	all := watchedLine.FindAllStringSubmatch(p.log, -1)
	if len(all) == 0 {
		return "", 0, false
	}
	last := all[len(all)-1]
	return strings.TrimSuffix(last[1], incoming), number(last[2]), true
}

// rebooting returns the VMs that have no domain, as xl is about to make them again after a reboot. exists reports
// whether a domain was listed.
func (d *Driver) rebooting(exists func(domain int) bool) (map[string]bool, error) {
	all, err := d.programs()
	if err != nil {
		return nil, err
	}
	return awaited(all, exists), nil
}

// awaited returns the VMs that programs watch and whose domain does not exist: they are about to make them again.
func awaited(programs []program, exists func(domain int) bool) map[string]bool {
	names := map[string]bool{}
	for i := range programs {
		if name, domain, ok := programs[i].watches(); ok && !exists(domain) {
			names[name] = true
		}
	}
	return names
}

// Limits of the wait for a VM that reboots: xl waits for two seconds, and builds the VM.
const (
	rebootTime = time.Minute
	rebootPoll = 100 * time.Millisecond
)

// find returns the identity and the UUID of the guest of a name. It waits for one that reboots.
func (d *Driver) find(ctx context.Context, name string) (id int, uuid string, err error) {
	wait, cancel := context.WithTimeout(ctx, d.reboot)
	defer cancel()
	for {
		configs, err := d.listed(ctx)
		if err != nil {
			return 0, "", err
		}
		for id, c := range configs {
			if id != controlDomain && c.Config.Create.Name == name {
				return id, c.Config.Create.UUID, nil
			}
		}
		reboots, err := d.rebooting(func(domain int) bool { _, ok := configs[domain]; return ok })
		if err != nil {
			return 0, "", err
		}
		if !reboots[name] {
			return 0, "", fmt.Errorf("VM %s: %w", name, guest.ErrNotFound)
		}
		select {
		case <-time.After(rebootPoll):
		case <-wait.Done():
			return 0, "", fmt.Errorf("VM %s: %w: xl is making it again after a reboot; try again", name,
				cmp.Or(ctx.Err(), guest.ErrRefused))
		}
	}
}

// nameless is what xl list prints for a domain without a name: xl has removed the name, or not set it yet.
const nameless = "(null)"

// comingOrGoing removes from a list of domains those that xl is making or ending, and returns a gap for each, and for
// each VM between the two domains of a reboot. A domain that xl has made and of which it has no configuration ended
// while the domains were listed, or is not complete.
func (d *Driver) comingOrGoing(s *state) (gaps []inventory.Gap) {
	passing := func(name, why string) {
		gaps = append(gaps, inventory.Gap{Kind: inventory.GuestGone, Object: inventory.GuestRef(name), What: "the VM",
			Why: why})
	}
	programs, err := d.programs()
	if err != nil {
		programs = nil // without /proc, a VM that reboots is one that has ended
	}
	watched := awaited(programs, func(int) bool { return false })
	ids, names := map[int]bool{}, map[string]bool{}
	s.domains = slices.DeleteFunc(s.domains, func(dom domain) bool {
		_, whole := s.configs[dom.ID]
		ids[dom.ID], names[dom.Name] = dom.Name != nameless, true
		if whole || dom.ID == controlDomain || !dom.isUnfinished() && !watched[dom.Name] {
			return false
		}
		passing(dom.Name, fmt.Sprintf("xl is starting or ending it: domain %d has state %s and no configuration",
			dom.ID, dom.State))
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(awaited(programs, func(domain int) bool { return ids[domain] }))) {
		if !names[name] {
			passing(name, "it is rebooting, and xl is about to make it again")
		}
	}
	return gaps
}
