// Package record keeps on disk what must outlive the daemon: the journal of
// what was done, and the alarms. Files are whole whatever happens: entries are
// appended one write each, documents are replaced by rename.
package record

// DefaultFolder is where records are unless the caller says otherwise.
const DefaultFolder = "/var/lib/numavisor"
