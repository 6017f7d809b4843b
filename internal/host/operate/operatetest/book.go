package operatetest

import (
	"sync"

	"github.com/numavisor/numavisor/internal/journal"
)

// Book is a journal in memory.
type Book struct {
	mu       sync.Mutex
	Recorded []journal.Entry
	Fail     func(n int, e journal.Entry) error // called before an entry is recorded, if set; n counts from 1
	Asked    int                                // number of calls of Append
}

// Append records an entry, unless Fail returns an error.
func (b *Book) Append(e journal.Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Asked++
	if b.Fail != nil {
		if err := b.Fail(b.Asked, e); err != nil {
			return err
		}
	}
	b.Recorded = append(b.Recorded, e)
	return nil
}

// Entries returns a copy of what was recorded.
func (b *Book) Entries() ([]journal.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]journal.Entry(nil), b.Recorded...), nil
}
