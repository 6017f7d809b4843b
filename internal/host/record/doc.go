// Package record stores on disk what must survive the daemon: the journal of
// all effects, and the alarms. Files are complete after kill -9, a full disk
// and a crash of the host: each entry is appended with one write, and documents
// are replaced by rename.
package record

// DefaultFolder is the folder of records unless the caller sets another.
const DefaultFolder = "/var/lib/numavisor"
