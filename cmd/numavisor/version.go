package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The Makefile sets these with the linker's -X: 'git describe', the commit's
// hash, and the commit's time in RFC 3339, UTC. All are empty in 'go test' and
// 'go install'.
var linkedVersion, linkedCommit, linkedDate string

// build identifies this program.
type build struct {
	Version  string `json:"version"`          // (devel): built without a version
	Commit   string `json:"commit,omitempty"` // hash of the commit
	Date     string `json:"date,omitempty"`   // of the commit, RFC 3339 in UTC
	Go       string `json:"go"`
	Platform string `json:"platform"` // OS/architecture
}

// thisBuild returns the values that the linker received and, where those are
// empty, the values that the Go toolchain recorded.
func thisBuild() build {
	b := build{Version: linkedVersion, Commit: linkedCommit, Date: linkedDate}
	if info, ok := debug.ReadBuildInfo(); ok {
		b = b.completedFrom(info)
	}
	b.Version = cmp.Or(b.Version, "unknown")
	b.Go, b.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	return b
}

func (b build) completedFrom(info *debug.BuildInfo) build {
	b.Version = cmp.Or(b.Version, info.Main.Version)
	if b.Commit != "" {
		return b // the recorded commit may be another one
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = cmp.Or(b.Date, s.Value)
		}
	}
	return b
}

// String is the build in one line, for --version: cobra puts "numavisor version "
// before it. A template of our own would make the linker keep every method of
// every type, 5 MB.
func (b build) String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s, %s)", b.Version,
		cmp.Or(b.Commit, "unknown"), cmp.Or(b.Date, "date unknown"), b.Go, b.Platform)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show version, commit and date of this program",
		Long: `Shows the version, the commit and its date, the Go version and the platform of
this program. 'numavisor --version' prints the same in one line.`,
		Example: `  numavisor version
  numavisor version -o json`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			return emit(c, b, func(w io.Writer) {
				for _, row := range [][2]string{
					{"version", b.Version}, {"commit", cmp.Or(b.Commit, "unknown")},
					{"date", cmp.Or(b.Date, "unknown")}, {"go", b.Go}, {"platform", b.Platform},
				} {
					printf(w, "%-9s %s\n", row[0]+":", row[1])
				}
			})
		},
	}
}
