package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ReadSetting returns a kernel setting below /proc/sys or /sys; of a setting
// that lists its choices ("always [madvise] never"), the chosen one.
func (r Root) ReadSetting(path string) (string, error) {
	file, err := r.settingFile(path)
	if err != nil {
		return "", err
	}
	return setting(file)
}

// WriteSetting writes a kernel setting below /proc/sys or /sys and verifies it
// by reading it back. It writes KSM's merge_across_nodes as SetKSMAcrossNodes
// does.
func (r Root) WriteSetting(path, value string) error {
	file, err := r.settingFile(path)
	if err != nil {
		return err
	}
	if path == "/"+fileKSMAcross {
		err = r.SetKSMAcrossNodes(value == "1")
	} else {
		err = writeKernelFile(file, value)
	}
	if err != nil {
		return fmt.Errorf("writing kernel setting %s: %w; run as root", path, err)
	}
	after, err := setting(file)
	if err == nil && after != value {
		err = fmt.Errorf("kernel setting %s: wrote %q, but it reads %q", path, value, after)
	}
	return err
}

// settingFile refuses paths that are not kernel settings.
func (r Root) settingFile(path string) (string, error) {
	if filepath.Clean(path) != path || (!strings.HasPrefix(path, "/proc/sys/") && !strings.HasPrefix(path, "/sys/")) {
		return "", fmt.Errorf("kernel setting %q: must be a clean path below /proc/sys or /sys", path)
	}
	return r.path(strings.TrimPrefix(path, "/")), nil
}

// setting reads a kernel setting's value: the chosen word of a setting that
// lists its choices.
func setting(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("kernel setting: %w", err)
	}
	return chosen(strings.TrimSpace(string(data))), nil
}
