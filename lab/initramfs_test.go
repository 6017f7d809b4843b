package lab

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
)

// The kernel unpacks an initramfs in order: a folder must come before what is in
// it, and a file that the host lacks is left out.
func TestPackInitramfs(t *testing.T) {
	folder := t.TempDir()
	source, target := filepath.Join(folder, "source"), filepath.Join(folder, "initrd")
	if err := os.WriteFile(source, []byte("module"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"mod/b.ko": source, "bin/a": source, "mod/none.ko": filepath.Join(folder, "none")}
	if err := packInitramfs([]byte("#!init"), files, []string{"bin", "mod", "proc"}, target); err != nil {
		t.Fatal(err)
	}
	packed, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Name, Content string
		Mode          uint64
	}
	var got []entry
	reader := cpio.Newc.Reader(bytes.NewReader(archive))
	err = cpio.ForEachRecord(reader, func(r cpio.Record) error {
		content, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		got = append(got, entry{r.Name, string(content), r.Mode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const folderMode, programMode = cpio.S_IFDIR | 0o755, cpio.S_IFREG | 0o755
	want := []entry{
		{"bin", "", folderMode}, {"mod", "", folderMode}, {"proc", "", folderMode}, {"init", "#!init", programMode},
		{"bin/a", "module", programMode}, {"mod/b.ko", "module", programMode},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the archive (-want +got):\n%s", diff)
	}
}

func TestPackInitramfs_Fails(t *testing.T) {
	folder := t.TempDir()
	if err := packInitramfs(nil, nil, nil, filepath.Join(folder, "none", "initrd")); err == nil {
		t.Error("no error, although the target's folder is missing")
	}
	if err := packInitramfs(nil, map[string]string{"a": folder}, nil, filepath.Join(folder, "initrd")); err == nil {
		t.Error("no error, although a source is a folder")
	}
}
