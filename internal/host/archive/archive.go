// Package archive unpacks the text archive of a captured host: a txtar file with
// files of its sys and proc. A file of the text "-> TARGET" stands for a
// symbolic link.
package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// maxSize bounds an archive, in bytes: a host of 256 CPUs takes some 2 MiB.
const maxSize = 64 << 20

// ErrNotArchive means that a text has no file of a captured host.
var ErrNotArchive = errors.New("not a text archive (txtar) of a host's sys and proc")

// Unpack writes the files of an archive below dir, an existing folder. An archive
// that names a path or a link outside of dir is an error.
func Unpack(r io.Reader, dir string) error {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the archive: %w", err)
	case len(data) > maxSize:
		return fmt.Errorf("the archive has more than %d MiB", maxSize>>20)
	}
	files := txtar.Parse(data).Files
	if len(files) == 0 {
		return ErrNotArchive
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpacking the archive: %w", err)
	}
	defer root.Close()
	for _, f := range files {
		if err := unpackFile(root, f); err != nil {
			return fmt.Errorf("unpacking %q of the archive: %w", f.Name, err)
		}
	}
	return nil
}

func unpackFile(root *os.Root, f txtar.File) error {
	if !filepath.IsLocal(f.Name) {
		return errors.New("names a path outside of the archive")
	}
	if err := root.MkdirAll(path.Dir(f.Name), 0o700); err != nil {
		return err
	}
	target, isLink := bytes.CutPrefix(bytes.TrimSpace(f.Data), []byte("-> "))
	if !isLink {
		return root.WriteFile(f.Name, f.Data, 0o600)
	}
	to := strings.TrimSpace(string(target))
	if path.IsAbs(to) || !filepath.IsLocal(path.Join(path.Dir(f.Name), to)) {
		return errors.New("links to a path outside of the archive")
	}
	return root.Symlink(to, f.Name)
}
