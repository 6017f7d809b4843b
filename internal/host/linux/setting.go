package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteSetting writes a kernel setting below /proc/sys or /sys, reads it back,
// and returns what it was. Settings that list their choices ("always [madvise]
// never") are compared by the chosen one.
func (r Root) WriteSetting(path, value string) (before string, err error) {
	clean := filepath.Clean(path)
	if clean != path || (!strings.HasPrefix(path, "/proc/sys/") && !strings.HasPrefix(path, "/sys/")) {
		return "", fmt.Errorf("kernel setting %q: must be a clean path below /proc/sys or /sys", path)
	}
	file := r.path(strings.TrimPrefix(path, "/"))
	if before, err = setting(file); err != nil {
		return "", err
	}
	if err := writeKernelFile(file, value); err != nil {
		return before, err
	}
	after, err := setting(file)
	if err == nil && after != value {
		err = fmt.Errorf("kernel setting %s: wrote %q, it reads %q", path, value, after)
	}
	return before, err
}

// setting reads a kernel setting's value: the chosen word where it lists its choices.
func setting(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("kernel setting: %w", err)
	}
	return chosen(strings.TrimSpace(string(data))), nil
}
