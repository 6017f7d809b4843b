package daemon_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

// A second daemon with the same records, whatever its socket, does not start:
// both would resume the same moves, and write the same files.
func TestStart_RefusesRecordsInUse(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		everyCompetitor(w)
		w.busy("a", "1", "4-7")
		w.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		noted := len(w.entries())
		second := daemon.New(w.d.Options)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := second.Run(ctx); !errors.Is(err, record.ErrHeld) {
			t.Errorf("the second: %v", err)
		}
		if _, err := second.Status(t.Context()); !errors.Is(err, daemon.ErrStopped) {
			t.Errorf("asking the second: %v", err)
		}
		if n := len(w.entries()); n != noted {
			t.Errorf("the second wrote %+v", w.entries()[noted:])
		}
		if now, _ := w.settings.On(w.Host).Settings(); now.NUMABalancing != "0" {
			t.Errorf("the second restored kernel balancing: it is %s", now.NUMABalancing)
		}
		other := record.Journal{Folder: w.folder} // 'numavisor apply'
		if err := other.Append(journal.Entry{At: time.Now(), Kind: journal.Accepted, What: "other"}); err != nil {
			t.Error(err)
		}
		w.end()
		w.start()
		w.end()
	})
}
