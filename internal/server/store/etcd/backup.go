package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/numavisor/numavisor/internal/topology"
)

// Backup is what a backup contains.
type Backup struct {
	Revision int64 // of the last transaction in it
	Records  int
	Size     topology.Bytes
}

// Backup writes all records to a file, as of one revision, while the store is in use. It replaces
// the file when the new one is complete and checked; after an error the old one is as it was.
// etcdctl can restore such files too. The file contains secrets, as the records do: only
// its owner can read it.
func (s *Store) Backup(ctx context.Context, path string) (Backup, error) {
	b, err := s.backup(ctx, path)
	if err != nil {
		return Backup{}, fmt.Errorf("back up to %s: %w", path, err)
	}
	return b, nil
}

func (s *Store) backup(ctx context.Context, path string) (Backup, error) {
	stream, err := s.client.Snapshot(ctx)
	if err != nil {
		return Backup{}, s.explain(ctx, "read", err)
	}
	defer stream.Close() //nolint:errcheck // only read
	file, err := renameio.NewPendingFile(path, renameio.WithStaticPermissions(0o600))
	if err != nil {
		return Backup{}, err
	}
	defer file.Cleanup() //nolint:errcheck // removes what is not complete
	if _, err := io.Copy(file, stream); err != nil {
		return Backup{}, s.explain(ctx, "read", err)
	}
	if err := file.Sync(); err != nil {
		return Backup{}, err
	}
	b, err := CheckBackup(file.Name())
	if err != nil {
		return Backup{}, err
	}
	return b, file.CloseAtomicallyReplace()
}

// CheckBackup reads a backup whole and returns what it contains. It fails if a bit of the file
// has changed since.
func CheckBackup(path string) (Backup, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = checkSum(path, info.Size())
	}
	if err != nil {
		return Backup{}, fmt.Errorf("check the backup: %w", err)
	}
	status, err := snapshot.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return Backup{}, fmt.Errorf("check the backup: %w", err)
	}
	return Backup{Revision: status.Revision, Records: status.TotalKey, Size: amount(info.Size())}, nil
}

// checkSum compares a file with the SHA-256 sum at its end.
func checkSum(path string, size int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if size%512 != sha256.Size { // whole sectors, then the sum
		return errors.New("it is no backup, or only a part of one")
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, file, size-sha256.Size); err != nil {
		return err
	}
	want, err := io.ReadAll(file)
	if err == nil && !slices.Equal(want, sum.Sum(nil)) {
		err = errors.New("its check sum is wrong: the file is damaged")
	}
	return err
}

// revisionBump is added to the revision of a restored store, so that revisions ascend for
// daemons that have seen records which were written after the backup.
const revisionBump = 1_000_000_000

// Restore makes the folder of a configuration from a backup, which it checks before. It refuses a
// folder that has records. To restore several members, restore the same backup for each of them,
// with its configuration, before any of them starts. If the restoration is interrupted, the
// folder has no records, and Restore can be repeated.
func Restore(path string, c Config) (Backup, error) {
	b, err := restore(path, c)
	if err != nil {
		return Backup{}, fmt.Errorf("restore %s to %s: %w", path, c.Folder, err)
	}
	return b, nil
}

func restore(path string, c Config) (Backup, error) {
	if c.Folder == "" {
		return Backup{}, errors.New("the records are in an external cluster: restore it with its own tools (etcdutl)")
	}
	if err := c.Validate(); err != nil {
		return Backup{}, err
	}
	b, err := CheckBackup(path)
	if err != nil {
		return Backup{}, err
	}
	if err := os.MkdirAll(c.Folder, 0o700); err != nil {
		return Backup{}, err
	}
	lock := flock.New(filepath.Join(c.Folder, lockFile))
	if locked, err := lock.TryLock(); err != nil || !locked {
		return Backup{}, errors.Join(errors.New("another process uses the folder"), err)
	}
	defer lock.Unlock() //nolint:errcheck // the process ends, or the folder is whole
	part := filepath.Join(c.Folder, "restoring")
	if err := os.RemoveAll(part); err != nil {
		return Backup{}, err
	}
	entries, err := os.ReadDir(c.Folder)
	if err != nil {
		return Backup{}, err
	}
	for _, e := range entries {
		if e.Name() != lockFile {
			return Backup{}, fmt.Errorf("the folder contains %s: restore into an empty folder", e.Name())
		}
	}
	if err := lay(path, part, c.Member); err != nil {
		return Backup{}, err
	}
	if err := os.Rename(part, filepath.Join(c.Folder, dataFolder)); err != nil {
		return Backup{}, err
	}
	return b, syncFolder(c.Folder)
}

// lay makes the data folder of a member.
func lay(path, to string, m Member) error {
	if len(m.Peers) == 0 {
		m = onlyMember()
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, OutputDataDir: to,
		Name: m.Name, PeerURLs: []string{m.Peers[m.Name]},
		InitialCluster: m.cluster(), InitialClusterToken: clusterToken,
		RevisionBump: revisionBump, MarkCompacted: true,
	})
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
