package daemon_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// openFor is a policy with a window of a minute from each of these times on.
func openFor(t *testing.T, p policy.Policy, from ...time.Time) policy.Policy {
	t.Helper()
	for _, at := range from {
		w, err := policy.ParseWindow(at.Format("15:04") + "-" + at.Add(time.Minute).Format("15:04"))
		if err != nil {
			t.Fatal(err)
		}
		p.Balance.Windows = append(p.Balance.Windows, w)
	}
	return p
}

// A move that is longer than its window stops at the next slice when the window
// ends, and is resumed in the next window, and the one after that.
func TestWindow_EndsDuringAMove(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		begin := time.Now().Truncate(time.Minute)
		w.policy.Balance.Pace = 8 * mib // 1 GiB takes more than two minutes
		w.policy = openFor(t, w.policy, begin, begin.Add(5*time.Minute), begin.Add(10*time.Minute))
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		copied := 0.0
		for _, closed := range []time.Duration{90 * time.Second, 390 * time.Second} {
			time.Sleep(time.Until(begin.Add(closed)))
			synctest.Wait()
			now := w.share("a", "0")
			if now <= copied || now > 0.98 {
				t.Fatalf("%.2f copied %v after the first window began, %.2f before: this run tested nothing", now,
					closed, copied)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if later := w.share("a", "0"); later != now {
				t.Errorf("outside the windows from %.2f to %.2f", now, later)
			}
			if s := w.status(); len(s.Moving) != 0 || s.Totals.MovesFailed != 0 ||
				!strings.Contains(s.Held, "outside") {
				t.Errorf("moving %+v, %+v, held %q", s.Moving, s.Totals, s.Held)
			}
			copied = now
		}
		time.Sleep(time.Until(begin.Add(12 * time.Minute)))
		synctest.Wait()
		if done, began := w.entries(journal.MoveDone), w.entries(journal.MoveBegan); len(done) != 1 ||
			len(began) != 1 ||
			w.share("a", "0") < 0.98 {
			t.Errorf("began %+v, done %+v, on node 0: %v", began, done, w.share("a", "0"))
		}
		if wrong := w.entries(journal.Drifted, journal.Repaired, journal.MoveFailed); len(wrong) != 0 {
			t.Errorf("%+v", wrong)
		}
	})
}

// A move that an operator accepted is completed regardless of windows.
func TestAccept_SurvivesItsWindow(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		begin := time.Now().Truncate(time.Minute)
		w.policy.Balance.Pace = 8 * mib
		w.policy.Balance.Guests = map[string]policy.Mode{"b": policy.ModeOff} // else the smaller b makes room
		w.policy = openFor(t, w.policy, begin)
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		advice := w.status().Advice
		if len(advice) != 1 {
			t.Fatalf("advice %+v: this run tested nothing", advice)
		}
		if err := w.d.Accept(t.Context(), advice[0].ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || w.share("a", "0") < 0.98 {
			t.Errorf("done %+v, on node 0: %v", done, w.share("a", "0"))
		}
	})
}
