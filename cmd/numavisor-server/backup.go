package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store/etcd"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// socketFile is where a running server takes the wish for a backup. Only its owner may connect.
	socketFile = "control.sock"
	// recordsEntry is the name of the records in a backup.
	recordsEntry = "etcd.snapshot"
	// readHeader limits a request for a backup.
	readHeader = 10 * time.Second
	// mostRecords bounds what is read of a backup; etcd's own bound of its file is less.
	mostRecords = 16 << 30
)

// settingsFiles are the files of the data folder that a backup has, each with its mode. The configuration is the
// last: a folder with it is complete.
func settingsFiles() []struct {
	name string
	mode fs.FileMode
} {
	return []struct {
		name string
		mode fs.FileMode
	}{{caFile, publicMode}, {caKeyFile, secretMode}, {configFile, publicMode}}
}

func backupCommand() *cobra.Command {
	var folder string
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all of a fleet but its time series to a file, while the server runs or not",
		Long: `Writes the records of a fleet as of one moment, its CA with the key and its configuration
to one file. A running server goes on meanwhile. The file replaces an older one once it is complete.

The file contains secrets: with it, a server can be made that all hosts trust. Only its
owner can read it. Time series are not in it.`,
		Example: `  numavisor-server backup /backup/fleet.tar`,
		Args:    oneFile,
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := readConfig(folder); err != nil {
				return err
			}
			b, err := backUp(c.Context(), folder, args[0])
			if err == nil {
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d records of revision %d, %v\n",
					args[0], b.Records, b.Revision, b.Size)
			}
			return err
		},
	}
	c.Flags().StringVar(&folder, "data", defaultData, "folder of the server's data")
	return c
}

func restoreCommand() *cobra.Command {
	var folder string
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the data folder of a server from a backup",
		Long: `Makes a data folder from a file that 'numavisor-server backup' has written. It refuses a
folder that has a fleet already. Hosts connect to the restored server as to the former one. What was
decided after the backup is lost; hosts report what runs.`,
		Example: `  numavisor-server restore --data /var/lib/numavisor-server /backup/fleet.tar`,
		Args:    oneFile,
		RunE: func(c *cobra.Command, args []string) error {
			b, err := restore(args[0], folder)
			if err == nil {
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d records of revision %d\n\nStart the server:\n"+
					"  numavisor-server --data %s\n", folder, b.Records, b.Revision, folder)
			}
			return err
		},
	}
	c.Flags().StringVar(&folder, "data", defaultData, "folder of the server's data")
	return c
}

func oneFile(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("give one file; see '%s --help'", c.CommandPath())}
	}
	return nil
}

// backUp writes a backup of a data folder.
func backUp(ctx context.Context, folder, path string) (etcd.Backup, error) {
	part := filepath.Join(folder, recordsEntry)
	if err := snapshotOf(ctx, folder, part); err != nil {
		return etcd.Backup{}, err
	}
	defer func() { _ = os.Remove(part) }() // it is of no use any more
	b, err := etcd.CheckBackup(part)
	if err != nil {
		return b, err
	}
	file, err := renameio.NewPendingFile(path, renameio.WithStaticPermissions(secretMode))
	if err != nil {
		return b, fmt.Errorf("writing the backup: %w", err)
	}
	defer file.Cleanup() //nolint:errcheck // removes what is not complete
	w := tar.NewWriter(file)
	for _, s := range settingsFiles() {
		if err := addTo(w, s.name, filepath.Join(folder, s.name)); err != nil {
			return b, fmt.Errorf("writing the backup: %w", err)
		}
	}
	if err := errors.Join(addTo(w, recordsEntry, part), w.Close(), file.CloseAtomicallyReplace()); err != nil {
		return b, fmt.Errorf("writing the backup: %w", err)
	}
	return b, nil
}

// snapshotOf writes the records: by the running server, else from the folder.
func snapshotOf(ctx context.Context, folder, to string) error {
	socket := filepath.Join(folder, socketFile)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	t := &http.Transport{DialContext: dial}
	defer t.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/backup", http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the server: %w", err)
	}
	answer, err := (&http.Client{Transport: t}).Do(r)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) { // no server runs
		conf, err := readConfig(folder)
		if err != nil {
			return err
		}
		ca, err := readCA(folder)
		if err != nil {
			return err
		}
		records, err := openStore(ctx, folder, conf, ca, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		_, err = records.Backup(ctx, to)
		return errors.Join(err, records.Close())
	}
	if err != nil {
		return fmt.Errorf("asking the server: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)) // a part of it helps as well
		return fmt.Errorf("the server made no backup: %s", bytes.TrimSpace(text))
	}
	return nil
}

func addTo(w *tar.Writer, name, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: name, Mode: secretMode, Size: info.Size()})
	}
	if err == nil {
		_, err = io.Copy(w, file)
	}
	return err
}

// takeBackups serves the socket of the data folder until ctx ends.
func takeBackups(ctx context.Context, folder string, records *etcd.Store) error {
	path := filepath.Join(folder, socketFile)
	// A killed server leaves its socket: the records are ours.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the old socket: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err == nil {
		err = os.Chmod(path, secretMode)
	}
	if err != nil {
		return fmt.Errorf("listening for backups: %w", err)
	}
	web := &http.Server{ReadHeaderTimeout: readHeader,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/backup" {
				http.NotFound(w, r)
				return
			}
			if _, err := records.Backup(r.Context(), filepath.Join(folder, recordsEntry)); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("taking backups: %w", err)
	}
	return nil
}

// restore makes a data folder from a backup.
func restore(path, folder string) (b etcd.Backup, err error) {
	if err := os.MkdirAll(folder, folderModes); err != nil {
		return b, fmt.Errorf("making the data folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(folder, configFile)); !errors.Is(err, fs.ErrNotExist) {
		return b, fmt.Errorf("%s has a fleet already: restore into another folder", folder)
	}
	part := filepath.Join(folder, recordsEntry)
	defer func() { _ = os.Remove(part) }()
	settings, err := unpack(path, part)
	if err != nil {
		return b, fmt.Errorf("%s is no backup of a fleet: %w", path, err)
	}
	var c config
	if err := json.Unmarshal(settings[configFile], &c); err != nil {
		return b, fmt.Errorf("the backup's %s: %w", configFile, err)
	}
	if c.Member != nil {
		return b, errors.New("the backup is of one of several servers, which must all have the same records: " +
			"on each, restore the file's " + recordsEntry + " with etcdutl")
	}
	ca, err := auth.ParseCA(settings[caFile], settings[caKeyFile])
	if err != nil {
		return b, fmt.Errorf("the backup's CA: %w", err)
	}
	where, err := c.records(folder, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		return b, err
	}
	if b, err = etcd.Restore(part, where); err != nil {
		return b, err
	}
	for _, s := range settingsFiles() {
		if err := write(folder, s.name, settings[s.name], s.mode); err != nil {
			return b, err
		}
	}
	return b, nil
}

// unpack writes the records of a backup to a file, and returns the other files.
func unpack(path, records string) (map[string][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	found := map[string][]byte{}
	for r := tar.NewReader(file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if _, twice := found[h.Name]; twice || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("entry %.60q", h.Name)
		}
		if h.Name != recordsEntry {
			if found[h.Name], err = io.ReadAll(io.LimitReader(r, int64(topology.MiB))); err != nil {
				return nil, err
			}
			continue
		}
		found[h.Name] = nil
		if err := copyTo(records, r); err != nil {
			return nil, err
		}
	}
	for _, s := range settingsFiles() {
		if len(found[s.name]) == 0 {
			return nil, fmt.Errorf("it has no %s", s.name)
		}
	}
	if _, has := found[recordsEntry]; !has || len(found) != len(settingsFiles())+1 {
		return nil, errors.New("it has no records, or other entries")
	}
	return found, nil
}

func copyTo(path string, from io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, secretMode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, io.LimitReader(from, mostRecords))
	return errors.Join(err, file.Close())
}
